"""Many runs: sorted by the cluster that they need, some side by side, those that take brokers down by themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults.environment import Environment, cluster
from tests.faults.generating import REAL
from tests.faults.result import Result
from tests.faults.running import play
from tests.faults.scenario import Scenario

#: a cluster that has served so many runs is replaced: topics, ids and logs of all of them are still in it
RUNS_OF_A_CLUSTER = 150


class Campaign:
    """Plays scenarios.

    :param side_by_side: runs at a time, on one cluster.
    :param on_result: called for each run, by one thread at a time.
    :param until: monotonic seconds; no run begins behind it.
    """

    def __init__(
        self,
        environment: Environment,
        on_result: Callable[[Result], None],
        *,
        side_by_side: int = 3,
        until: float = float("inf"),
    ) -> None:
        self._environment = environment
        self._on_result = on_result
        self._side_by_side = side_by_side
        self._until = until
        self._lock = threading.Lock()

    def stop(self) -> None:
        """What is under way comes to its end, and nothing more begins. Callable from a signal's handler."""
        self._until = 0.0

    def play(self, scenarios: Iterable[Scenario]) -> None:
        """All of them. Two clusters at most are up: one of many runs at a time, one for those that need it alone. Those
        that go through Airflow come at the end, by themselves."""
        every: list[Scenario] = []
        real: list[Scenario] = []
        for scenario in scenarios:
            (real if scenario.seed >= REAL else every).append(scenario)
        shared = [s for s in every if not s.is_alone]
        alone = [s for s in every if s.is_alone]
        with ThreadPoolExecutor(2) as lanes:
            both = [lanes.submit(self._lane, shared, self._side_by_side), lanes.submit(self._lane, alone, 1)]
            try:
                for lane in both:
                    lane.result()
            except BaseException:
                self.stop()
                raise
        if real and time.monotonic() < self._until:
            self._through_airflow(real)

    def _through_airflow(self, scenarios: list[Scenario]) -> None:
        from tests.faults.real import place, play

        with place(self._environment, scenarios[0].cluster, {s.engine for s in scenarios}) as there:
            for scenario in scenarios:
                if time.monotonic() < self._until:
                    self._on_result(play(scenario, there, self._environment))

    def _lane(self, scenarios: list[Scenario], side_by_side: int) -> None:
        for batch in batches(scenarios):
            if time.monotonic() > self._until:
                return
            with ExitStack() as stack:
                kafka = stack.enter_context(cluster(batch[0].cluster))
                with ThreadPoolExecutor(side_by_side) as pool:
                    for done in [pool.submit(self._one, scenario, kafka) for scenario in batch]:
                        done.result()

    def _one(self, scenario: Scenario, kafka: LocalKafka) -> None:
        if time.monotonic() > self._until:
            return
        with self._environment.of(scenario) as environment:
            result = play(scenario, kafka, environment)
        with self._lock:
            self._on_result(result)


def batches(scenarios: Iterable[Scenario]) -> Iterator[list[Scenario]]:
    """By the cluster that they need, and no more to one cluster than it should serve. No I/O."""
    by_cluster: dict[tuple[str, int], list[Scenario]] = {}
    for scenario in scenarios:
        by_cluster.setdefault(scenario.cluster, []).append(scenario)
    for _, some in sorted(by_cluster.items()):
        for begin in range(0, len(some), RUNS_OF_A_CLUSTER):
            yield some[begin : begin + RUNS_OF_A_CLUSTER]
