"""The demo's backfill: what a person does in Airflow, and would see there, as lines of text.

What goes wrong in the demo: a task process killed with SIGKILL, and a source that is late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from airflow_kafka_eos.errors import ConfigurationError, SandboxError
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.keeping import Progress

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


SEARCH_SECONDS = 0.2
LOOK_SECONDS = 0.01


class Killer(threading.Thread):
    """SIGKILLs the prepare task of a load's attempt at the moment when its transactions are prepared.

    The moment is when the manifest appears: every transaction is flushed and open, Spark is about to end, and
    Airflow has not heard of it. Only the task's own process is killed; the Spark JVM is left behind, as happens
    in real life. Where an attempt ends before that, the next one is waited for.

    :param first: the first attempt of the load.
    :param manifest: where the manifest of an attempt will be.
    """

    def __init__(
        self, first: AttemptRef, manifest: Callable[[AttemptRef], Path], log: Callable[[str], None]
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self._first = first
        self._manifest = manifest
        self._log = log
        self._given_up = threading.Event()
        self.killed: int | None = None

    def run(self) -> None:
        while not self._given_up.is_set() and self.killed is None:
            # found beforehand: a look at all processes may take longer than Spark's end
            if (found := task_of(self._first)) is not None:
                self._kill_when_prepared(*found)
            time.sleep(SEARCH_SECONDS)

    def stop(self) -> None:
        """Give up waiting."""
        self._given_up.set()

    def _kill_when_prepared(self, ref: AttemptRef, task: psutil.Process) -> None:
        manifest = self._manifest(ref)
        while not self._given_up.is_set() and _lives(task):
            if manifest.exists():
                try:
                    task.kill()
                except psutil.NoSuchProcess:
                    return
                self.killed = task.pid
                self._log(f"{ref}: all transactions are prepared; SIGKILL to its task process {task.pid}")
                return
            time.sleep(LOOK_SECONDS)


def task_of(any_attempt: AttemptRef) -> tuple[AttemptRef, psutil.Process] | None:
    """The task that waits for the spark-submit JVM of an attempt of that load, found by the JVM's command line."""
    from airflow_kafka_eos.spark.spec import ApplicationSpec

    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
            if not any("SparkSubmit" in a for a in arguments) or "--spec" not in arguments:
                continue
            ref = ApplicationSpec.from_json(arguments[arguments.index("--spec") + 1]).options.attempt
            task = process.parent()
        except (psutil.Error, IndexError, ConfigurationError):
            # it has ended, or is another program's, or an application that is handed its load in another way
            continue
        # the ledger's id too: other demos load the same days
        if (ref.load, ref.ledger_id) == (any_attempt.load, any_attempt.ledger_id) and task is not None:
            return ref, task
    return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def must_have_happened(killer: Killer) -> None:
    """The demo shows a kill or it shows nothing.

    :raises SandboxError: nothing was killed.
    """
    killer.stop()
    killer.join(timeout=5)
    if killer.killed is None:
        raise SandboxError(
            "the demo meant to kill a task and did not", remedy="Run it again on a quieter machine"
        )
