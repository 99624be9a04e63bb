"""A run that stops where a test wants it (see dags/clicks.py), and what a person or a machine may do to it there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from tests.airflow.conftest import Place
from tests.airflow.counting import PARTITIONS, Count, count, held_back
from tests.airflow.processes import kill, submit_of
from tests.airflow.rest import Run, wait_for

RECORDS = 200
GONE_SECONDS = 60.0


class Held(Run):
    """A run of ``clicks``, ``own_clicks``, ``whole``, ``arrow``, ``connect`` or ``connect_whole``.

    Its id names its key, its topic and the folder of its moments.
    """

    def __init__(self, place: Place, name: str, dag: str = "clicks") -> None:
        super().__init__(place.airflow, dag, name)
        self.place = place
        self.load = LoadIdentity("airflow", f"{dag}.load", name)
        self._folder = place.switches / name
        self._folder.mkdir()
        place.kafka.create_topic(name, partitions=PARTITIONS)

    def hold(self, moment: str) -> None:
        for suffix in (".here", ".go"):
            self._file(moment, suffix).unlink(missing_ok=True)
        self._file(moment, ".hold").touch()

    def reached(self, moment: str, *, with_open: bool = True) -> None:
        """Wait until somebody has stopped there.

        :param with_open: in Spark, also until the other partition's transaction is open. In scope ``load``, rows are
            moved to the tasks that own their partitions behind this moment: there is none yet.
        """
        wait_for(lambda: self._pid(moment), lambda: f"{self.id} at {moment}: {self.tasks()}")
        if moment == "writing" and with_open and self.dag in ("clicks", "own_clicks", "arrow", "connect"):
            wait_for(self.held_back, lambda: f"an open transaction of {self.id}")

    def go(self, moment: str) -> None:
        self._file(moment, ".go").touch()

    def skip(self, on: bool) -> None:
        """Whether the author's check raises AirflowSkipException."""
        self.switch("skip", on)

    def switch(self, name: str, on: bool) -> None:
        """What else the author's check does: ``refuse``, ``fails-once``."""
        self._file(name, "").touch() if on else self._file(name, "").unlink(missing_ok=True)

    def pause(self, on: bool) -> None:
        """The whole DAG."""
        self.airflow.patch(f"/dags/{self.dag}", {"is_paused": on})

    def be_orphaned(self) -> None:
        """The next Spark application does not end with its task."""
        self._file("orphaned", "").touch()

    def be_unwatched(self) -> None:
        """Nor does it when it is superseded."""
        self._file("unwatched", "").touch()

    def log_of(self, task: str, attempt: int) -> str:
        """What Airflow has of a task's try by now."""
        folder = self.airflow.home / "logs" / f"dag_id={self.dag}" / f"run_id={self.id}" / f"task_id=load.{task}"
        found = folder / f"attempt={attempt}.log"
        return found.read_text(encoding="utf-8", errors="replace") if found.exists() else ""

    def passed(self, moment: str) -> bool:
        return self._file(moment, ".done").exists()

    def process(self, moment: str) -> psutil.Process:
        """The task's own process, which its supervisor has forked."""
        if moment == "writing" and self.dag in ("connect", "connect_whole"):
            return psutil.Process(int(self._file("client", "").read_text()))
        if moment != "writing" or self.dag in ("arrow", "far", "far_here"):
            return psutil.Process(self._pid(moment))
        submitted = self.jvm()
        if self.dag == "own_clicks":  # a BashOperator's command leads a session
            submitted = psutil.Process(os.getsid(submitted.pid))
        task = submitted.parent()
        assert task is not None
        return task

    def jvm(self) -> psutil.Process:
        newest = self.place.ledger.attempts(self.load)[-1]
        return submit_of(self.airflow, AttemptRef(self.load, self.place.ledger.ledger_id, newest.number, newest.slot))

    def pid(self, moment: str) -> int:
        """Of whoever has stopped there: in Spark, an executor's Python."""
        return self._pid(moment)

    def wait_for_attempts(self, number: int) -> bool:
        """Wait until the load has so many."""
        wait_for(lambda: self.attempts() >= number, lambda: f"attempt {number} of {self.id}: {self.tasks()}")
        return True

    def kill_supervisor(self, moment: str) -> None:
        supervisor = self.process(moment).parent()
        assert supervisor is not None
        assert "LocalExecutor" in " ".join(supervisor.cmdline()), supervisor
        kill(supervisor)

    def attempts(self) -> int:
        return len(self.place.ledger.attempts(self.load))

    def held_back(self) -> list[str]:
        return held_back(self.place.bootstrap, self.id)

    def sweep(self) -> None:
        """The command that a person runs for one load."""
        command = ["cleanup", self.load.name, self.load.key, "--yes", "--quiet", "2s", "--deadline", "60"]
        code = "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            env=self.airflow.env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def count(self, *, whole: bool) -> Count:
        """Against all of the load, or nothing of it."""
        expected = [f"{self.id} {n}" for n in range(RECORDS)] if whole else []
        return count(self.place.bootstrap, self.id, expected, ids=f".{self.id}.")

    def _pid(self, moment: str) -> int:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(self._file(moment, ".here").read_text())
        return 0

    def _file(self, moment: str, suffix: str) -> Path:
        return self._folder / (moment + suffix)


def right(*, whole: bool) -> Count:
    return Count(RECORDS if whole else 0, 0, 0, 0, ())


def wait_gone(process: psutil.Process) -> None:
    """Until a process has ended that Airflow has been told to end."""
    wait_for(
        lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE,
        lambda: f"the end of {process}",
        seconds=GONE_SECONDS,
    )
