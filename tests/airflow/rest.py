"""What a person clicks in Airflow, as calls of its REST API."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx

from airflow_kafka_eos.sandbox.airflow import LocalAirflow

ENDED = ("success", "failed")
TASKS = ("begin", "prepare", "decide", "commit", "cleanup", "loaded")
PATIENCE_SECONDS = float(os.environ.get("PATIENCE", "240"))
#: Set when nobody waits for the answer any more: a test has failed, and the session ends.
GIVEN_UP = threading.Event()


def wait_for(done: Callable[[], Any], what: Callable[[], str], seconds: float = PATIENCE_SECONDS) -> Any:
    """What ``done`` answers, once that is true."""
    until = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < until, f"not within {seconds:g} s: {what()}"
        assert not GIVEN_UP.is_set()
        time.sleep(0.5)  # each look costs the api-server something
    return found


def past_midnight(seconds: float) -> None:
    """Wait until midnight UTC is over where it comes within so many seconds: daily schedules have one run more then."""
    now = datetime.now(UTC)
    left_s = (datetime.combine(now.date() + timedelta(days=1), datetime.min.time(), UTC) - now).total_seconds()
    if left_s < seconds:
        time.sleep(left_s + 1)


def health(airflow: LocalAirflow) -> str:
    """For people: whether its parts are alive, and the last trace in its log. Without a scheduler nothing ends."""
    parts = httpx.get(f"{airflow.url}/api/v2/monitor/health", timeout=30).json()
    log = airflow.log_file("scheduler")
    _, trace, last = log.read_text(errors="replace").rpartition("Traceback (most recent call last)")
    return f"{parts}; last trace in {log}: {trace}{last[:5000] if trace else 'none'}"


class Run:
    """One DAG run, started or not; its load is the task group ``load``."""

    def __init__(self, airflow: LocalAirflow, dag: str, run_id: str) -> None:
        self.airflow = airflow
        self.dag = dag
        self.id = run_id
        self._path = f"/dags/{dag}/dagRuns/{quote(run_id)}"

    def start(self) -> None:
        wait_for_dag(self.airflow, self.dag)
        self.airflow.post(f"/dags/{self.dag}/dagRuns", {"dag_run_id": self.id, "logical_date": None})

    def state(self) -> str:
        return str(self.airflow.get(self._path)["state"])

    def wait(self, seconds: float = PATIENCE_SECONDS) -> str:
        """The state in which it ends."""
        missing = lambda: f"end of {self.dag} {self.id}: {self.tasks()}; {health(self.airflow)}"  # noqa: E731
        wait_for(lambda: self.state() in ENDED, missing, seconds)
        return self.state()

    def tasks(self) -> dict[str, tuple[str, int]]:
        """State and try number of each."""
        tasks = self.airflow.get(f"{self._path}/taskInstances")["task_instances"]
        return {t["task_id"].removeprefix("load."): (t["state"], t["try_number"]) for t in tasks}

    def wait_task(self, task: str, *states: str) -> None:
        wait_for(lambda: self.tasks()[task][0] in states, lambda: f"{task} in {states}: {self.tasks()}")

    def clear(self, *tasks: str, downstream: bool = False) -> None:
        body = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": self.id,
            "task_ids": [f"load.{task}" for task in tasks],
            "include_downstream": downstream,
        }
        cleared = self.airflow.post(f"/dags/{self.dag}/clearTaskInstances", body)["task_instances"]
        assert {f"load.{task}" for task in tasks} <= {t["task_id"] for t in cleared}

    def mark(self, task: str, state: str) -> None:
        self.airflow.patch(f"{self._path}/taskInstances/load.{task}", {"new_state": state})

    def mark_run(self, state: str) -> None:
        self.airflow.patch(self._path, {"state": state})

    def delete(self) -> None:
        self.airflow.delete(self._path)


def wait_for_dag(airflow: LocalAirflow, dag: str) -> None:
    airflow.wait_for_dag(dag)
