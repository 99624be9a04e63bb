"""What Airflow and its users do with one load: run its tasks in their order, retry, tear down, clear until it is there.

::

    begin (setup) >> prepare >> decide >> commit >> cleanup (teardown)
                                          commit >> loaded
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.faults.accounts import GAVE_UP
from tests.faults.plan import Ended, Order, Plan
from tests.faults.scenario import LOSING_KINDS, Role, Wish
from tests.faults.timeline import Timeline
from tests.faults.zygote import ask

#: Airflow's default is five minutes
RETRY_DELAY_S = 0.2
#: a person clears the run so often, and no longer
MOST_CLEARS = 12
#: and where ledger or topic were lost, until it sees that clearing does not help
CLEARS_OF_THE_LOST = 2
PATIENCE_S = 240.0

Start = Callable[[Order], Ended]


@dataclass
class Conductor:
    """One DAG run of one load.

    :param run_id: two of them for one load race.
    """

    plan: Plan
    load: int
    run_id: str
    start: Start

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.plan.folder, f"airflow {self.owner}")
        self._teardown_was_well = False

    @classmethod
    def by_zygote(cls, plan: Plan, load: int, run_id: str, address: str) -> Conductor:
        return cls(plan, load, run_id, lambda order: ask(address, order))

    @property
    def owner(self) -> str:
        return f"dag/{self.run_id}-{self.load}"

    def play(self) -> bool:
        """Until the load is there and clean, or nobody wants it any more; whether it is, as the run was told."""
        fate = self.plan.scenario.loads[self.load].fate
        loses = any(fault.kind in LOSING_KINDS for fault in self.plan.scenario.faults)
        clears = {Wish.LOAD: CLEARS_OF_THE_LOST if loses else MOST_CLEARS, Wish.REFUSE: 1, Wish.ABANDON: 0}[fate]
        begun = time.monotonic()
        for number in range(clears + 1):
            if number:
                self.timeline.log("is cleared", number=number)
            if self.dag_run():
                return True
            after_s = time.monotonic() - begun
            if after_s > PATIENCE_S and number < clears:
                # no word about the load: on a machine that starves it, it would have arrived
                self.timeline.log(GAVE_UP, load=self.load, after_s=round(after_s))
                break
        self.timeline.log("nobody clears it any more")
        return False

    def dag_run(self) -> bool:
        """All tasks once, with their retries. True: the leaf has succeeded, and the teardown too."""
        if not self._task(Role.BEGIN):
            self.timeline.log("run failed", at="begin")
            return False
        works = all(self._task(role) for role in (Role.PREPARE, Role.DECIDE, Role.COMMIT))
        with ThreadPoolExecutor(2) as both:
            cleanup = both.submit(self._task, Role.CLEANUP)
            loaded = both.submit(self._task, Role.LOADED) if works else None
            done = loaded is not None and loaded.result()
            clean = cleanup.result()
        self.timeline.log("run succeeded" if done and clean else "run failed", loaded=done, clean=clean)
        return done and clean

    def _task(self, role: Role) -> bool:
        for number in range(self.plan.scenario.retries + 1):
            if number:
                time.sleep(RETRY_DELAY_S)
            ended = self.start(Order(role.value, self.load, self.owner, self.plan.folder))
            if ended.is_well:
                return True
            if ended.killed_by:
                self.timeline.log(f"{role.value} was killed", signal=ended.killed_by)
            if ended.final:
                break
        return False
