"""The demo's backfill: what a person does in Airflow, and would see there, as lines of text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.progress import Progress

POLL_SECONDS = 0.7
#: nothing at all happens: longer than Airflow needs to find out that a task or a scheduler is dead
STILL_SECONDS = 300.0
#: of all of it: a load takes seconds, here is room for a slow machine
BASE_SECONDS, DAY_SECONDS = 600.0, 60.0
ACTIVE = ("scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting")


class Backfill:
    """Of a DAG with a load in the task group ``group``, from its first to its last day.

    :param may_fail: called with the day and the id of a run that has failed; False where that is not part of the story.
    :param check: called at each look; raises where there is no use in waiting.
    """

    def __init__(
        self,
        airflow: LocalAirflow,
        dag_id: str,
        group: str,
        days: Sequence[str],
        *,
        may_fail: Callable[[str, str], bool],
        check: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self._airflow, self._dag_id, self._group, self._days = airflow, dag_id, group, days
        self._may_fail, self._check, self._log = may_fail, check, log
        self._states: dict[str, str] = {}

    def run(self, at_a_time: int) -> None:
        """From the click until every run has succeeded.

        :raises SandboxError: a run failed, or nothing happens any more.
        """
        self._airflow.wait_for_dag(self._dag_id)
        first, last = self._days[0], self._days[-1]
        body = {
            "dag_id": self._dag_id,
            "from_date": f"{first}T00:00:00Z",
            "to_date": f"{last}T00:00:00Z",
            "max_active_runs": at_a_time,
        }
        self._airflow.backfill(body)
        self._log(f"backfill of {first} to {last} has begun, {at_a_time} runs at a time")
        until = time.monotonic() + BASE_SECONDS + DAY_SECONDS * len(self._days)
        progress, moved, active = Progress(self._log), time.monotonic(), ""
        while not self._done():
            self._check()
            if self._look():
                progress.moved()
                moved = time.monotonic()
            if progress.is_due:
                before, active = active, self._active()
                if active != before:
                    moved = time.monotonic()
                done = list(self._states.values()).count("success")
                progress.say(f"{len(self._days) - done} of {len(self._days)} runs: {active}")
            still = time.monotonic() - moved
            if still > STILL_SECONDS or time.monotonic() > until:
                raise SandboxError(
                    f"the backfill is not done after {progress.seconds:.0f} s, nothing has happened for {still:.0f} s: "
                    f"{self._active()}; {self._airflow.health()}",
                    remedy=f"See the logs in {self._airflow.home}",
                )
            time.sleep(POLL_SECONDS)

    def _done(self) -> bool:
        return list(self._states.values()).count("success") >= len(self._days)

    def _look(self) -> bool:
        """Tell what has changed; whether something has."""
        changed = False
        for run in self._airflow.every(f"/dags/{self._dag_id}/dagRuns", "dag_runs", run_type="backfill"):
            day, state = run["logical_date"][:10], run["state"]
            if self._states.get(day, "queued") != state:
                changed = True
                self._log(f"run of {day}: {state}")
                if state == "failed" and not self._may_fail(day, run["dag_run_id"]):
                    raise SandboxError(f"the run of {day} failed", remedy=f"See {self._logs_of(run)}")
            self._states[day] = state
        return changed

    def _active(self) -> str:
        """The tasks that are under way, and what is wrong with Airflow where something is."""
        path = f"/dags/{self._dag_id}/dagRuns/~/taskInstances"
        tasks = self._airflow.every(path, "task_instances", state=ACTIVE)
        said = sorted(f"{t['logical_date'][:10]} {self._short(t)} is {t['state']}" for t in tasks)
        health = self._airflow.health()
        ill = [health] if "no sign" in health or "not answer" in health else []
        return ", ".join([*said, *ill]) or "the scheduler has not begun a task"

    def _short(self, task: dict[str, Any]) -> str:
        name = str(task["task_id"]).removeprefix(f"{self._group}.")
        return name if task["try_number"] < 2 else f"{name} (try {task['try_number']})"

    def _logs_of(self, run: dict[str, Any]) -> str:
        """The log folders of what has failed in a run."""
        path = f"/dags/{self._dag_id}/dagRuns/{quote(run['dag_run_id'])}/taskInstances"
        folder = self._airflow.home / "logs" / f"dag_id={self._dag_id}" / f"run_id={run['dag_run_id']}"
        failed = [t["task_id"] for t in self._airflow.every(path, "task_instances", state=["failed"])]
        return ", ".join(str(folder / f"task_id={task}") for task in failed) or str(folder)
