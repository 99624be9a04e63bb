"""A streaming query of stream_dags/streams.py: its files, its runs, and what an independent reader sees."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.counting import PARTITIONS, Count, count, held_back
from tests.airflow.rest import Run, wait_for


@dataclass(frozen=True)
class Place:
    """The running Airflow, which has the DAGs of stream_dags/ alone, and where its parts are."""

    airflow: LocalAirflow
    ledger: Ledger
    switches: Path
    bootstrap: str
    kafka: LocalKafka


#: of each file, and so of each batch
LINES = 200


class Streamed:
    """The query of one DAG, which is the topic's name, too."""

    def __init__(self, place: Place, dag: str) -> None:
        self.place = place
        self.dag = dag
        self.folder = place.switches / dag
        (self.folder / "in").mkdir(parents=True)
        place.kafka.create_topic(dag, partitions=PARTITIONS)
        self.files = 0

    def feed(self, files: int) -> None:
        for _ in range(files):
            text = "".join(f"{self.dag} {self.files} {n}\n" for n in range(LINES))
            whole = self.folder / f"{self.files:05}.txt"
            whole.write_text(text)
            # read by their times: in this order
            os.utime(whole, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
            whole.rename(self.folder / "in" / whole.name)
            self.files += 1

    def run(self, run_id: str, dag: str | None = None) -> Run:
        """Started."""
        run = Run(self.place.airflow, dag or self.dag, run_id)
        run.start()
        return run

    def hold(self) -> None:
        for suffix in (".here", ".go"):
            (self.folder / f"writing{suffix}").unlink(missing_ok=True)
        (self.folder / "writing.hold").touch()

    def reached(self, run: Run) -> None:
        """Wait until a batch has stopped in its middle, and readers of its partitions with it."""
        wait_for((self.folder / "writing.here").exists, lambda: f"{run.id}: {run.tasks()}")
        wait_for(self.held_back, lambda: f"an open transaction of {run.id}")

    def go(self) -> None:
        (self.folder / "writing.go").touch()

    def held_back(self) -> list[str]:
        return held_back(self.place.bootstrap, self.dag)

    def count(self) -> Count:
        """Against all that was fed."""
        expected = [f"{self.dag} {f} {n}" for f in range(self.files) for n in range(LINES)]
        return count(self.place.bootstrap, self.dag, expected, ids=f".{self.dag}%2Eload.")

    def right(self) -> Count:
        return Count(self.files * LINES, 0, 0, 0, ())

    def driver(self) -> psutil.Process:
        """The JVM of the driver that is at work."""
        (found,) = drivers(self.place.airflow, f'"{self.dag}.load"')
        return found

    def returned(self, run: Run, task: str) -> Any:
        path = f"/dags/{run.dag}/dagRuns/{run.id}/taskInstances/load.{task}/xcomEntries/return_value"
        return self.place.airflow.get(path, deserialize=True, stringify=False)["value"]

    def events(self, dag: str | None = None) -> list[dict[str, Any]]:
        """That loaded has made, the oldest first."""
        found = self.place.airflow.get("/assets/events", source_dag_id=dag or self.dag, order_by="timestamp")
        return [event["extra"] for event in found["asset_events"]]

    def log_of(self, run: Run, task: str, attempt: int = 1) -> str:
        folder = self.place.airflow.home / "logs" / f"dag_id={run.dag}" / f"run_id={run.id}" / f"task_id=load.{task}"
        found = folder / f"attempt={attempt}.log"
        return found.read_text(encoding="utf-8", errors="replace") if found.exists() else ""

    def batch(self, number: int) -> LoadIdentity:
        row = self.place.ledger.stream("airflow", f"{self.dag}.load")
        assert row is not None
        return LoadIdentity("airflow", row.name, f"{row.query_id}-{number}")

    def page(self, run: Run) -> list[dict[str, Any]]:
        """The loads of a run."""
        url = self.place.airflow.url
        token = httpx.get(f"{url}/auth/token", timeout=60).json()["access_token"]
        answer = httpx.get(
            f"{url}/kafka-eos/api/loads", params={"dag_id": run.dag, "run_id": run.id},
            headers={"Authorization": f"Bearer {token}"}, timeout=60,
        )  # fmt: skip
        found: list[dict[str, Any]] = answer.raise_for_status().json()["loads"]
        return found


def drivers(airflow: LocalAirflow, part: str) -> list[psutil.Process]:
    """JVMs of queries whose specification has this in it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if not any("SparkSubmit" in word for word in line) or not any(part in word for word in line):
                continue
            if process.environ().get("AIRFLOW_HOME") == str(airflow.home):
                found.append(process)
    return found


def command(place: Place, *arguments: str) -> tuple[int, str, str]:
    """A command of ours, as a person types it on Airflow's host."""
    code = "import sys; from airflow_kafka_eos.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=place.airflow.env, cwd=Path.home(),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr
