"""What goes wrong in the demo: a task process killed with SIGKILL, and a source that is late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.manifest import AttemptRef

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
            ref = ApplicationSpec.from_json(arguments[arguments.index("--spec") + 1]).attempt
            task = process.parent()
        except (psutil.Error, IndexError):
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
