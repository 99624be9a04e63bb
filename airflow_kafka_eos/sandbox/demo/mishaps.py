"""What goes wrong in the demo: a task process killed with SIGKILL, and a source that is late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.manifest import AttemptRef


class Killer(threading.Thread):
    """SIGKILLs the prepare task of an attempt at the moment when its transactions are prepared.

    The moment is when the manifest appears: every transaction is flushed and open, Spark is about to end, and
    Airflow has not heard of it. Only the task's own process is killed; the Spark JVM is left behind, as happens
    in real life.
    """

    def __init__(
        self, ref: AttemptRef, manifest: Path, log: Callable[[str], None], patience_s: float = 300
    ) -> None:
        super().__init__(name="killer", daemon=True)
        self._ref = ref
        self._manifest = manifest
        self._log = log
        self._patience_s = patience_s
        self._given_up = threading.Event()
        self.killed: int | None = None

    def run(self) -> None:
        until = time.monotonic() + self._patience_s
        while not self._given_up.is_set() and time.monotonic() < until:
            if self._manifest.exists():
                submit = spark_submit_of(self._ref)
                task = submit.parent() if submit else None
                if task is not None:
                    task.kill()
                    self.killed = task.pid
                    self._log(
                        f"{self._ref}: all transactions are prepared; SIGKILL to its task process {task.pid}"
                    )
                else:
                    self._log(f"{self._ref}: came too late to kill its task")
                return
            time.sleep(0.01)

    def stop(self) -> None:
        """Give up waiting."""
        self._given_up.set()


def spark_submit_of(ref: AttemptRef) -> psutil.Process | None:
    """The spark-submit JVM of an attempt, found by the attempt in its command line."""
    from airflow_kafka_eos.spark.spec import ApplicationSpec

    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
            if not any("SparkSubmit" in a for a in arguments) or "--spec" not in arguments:
                continue
            spec = ApplicationSpec.from_json(arguments[arguments.index("--spec") + 1])
        except (psutil.Error, IndexError):
            continue
        if spec.attempt == ref:
            return process
    return None


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
