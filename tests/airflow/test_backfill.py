"""A backfill with several runs at a time, and the same dates again. ``DAYS=30`` makes it as long as you like."""

from __future__ import annotations

import os
import time
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from airflow_kafka_eos.load import LoadIdentity
from tests.airflow.conftest import Place
from tests.airflow.counting import PARTITIONS, Count, count
from tests.airflow.held import RECORDS
from tests.airflow.rest import ENDED, wait_for, wait_for_dag

DAYS = int(os.environ.get("DAYS", "4"))
#: each of them is written twice
RELOADED_DAYS = int(os.environ.get("DAYS", "2"))
FIRST = date(2025, 3, 1)
AT_A_TIME = 4
#: A load takes seconds; here is room for a slow machine.
SECONDS = 60 * DAYS + 180


class Backfill:
    """Of one DAG, whose topic has its name."""

    def __init__(self, place: Place, dag: str, days: int) -> None:
        self.place = place
        self.airflow = place.airflow
        self.dag = dag
        self.days = [FIRST + timedelta(days=n) for n in range(days)]
        place.kafka.create_topic(dag, partitions=PARTITIONS)
        wait_for_dag(self.airflow, dag)

    def run(self, behavior: str) -> None:
        """From the click until every run of it has ended."""
        body = {
            "dag_id": self.dag,
            "from_date": f"{self.days[0]}T00:00:00Z",
            "to_date": f"{self.days[-1]}T00:00:00Z",
            "max_active_runs": AT_A_TIME,
            "reprocess_behavior": behavior,
        }
        began, clicked = time.monotonic(), datetime.now(UTC)
        number = self.airflow.backfill(body)

        def over() -> bool:
            done = self.airflow.get(f"/backfills/{number}")["completed_at"] is not None
            return done and all(run["state"] in ENDED for run in self.runs())

        wait_for(over, lambda: f"{[(r['dag_run_id'], r['state']) for r in self.runs()]}", seconds=SECONDS)
        assert [run["state"] for run in self.runs()] == ["success"] * len(self.days)
        assert self.prepared_since(clicked) == len(self.days), "not every run was done again: this tests nothing"
        print(f"{self.dag}, {len(self.days)} days, {behavior}: {time.monotonic() - began:.1f} s", flush=True)

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.airflow.get(f"/dags/{self.dag}/dagRuns", limit=100)["dag_runs"]
        return found

    def prepared_since(self, moment: datetime) -> int:
        """Prepare tasks that have begun since then. (Of most reprocessed runs, tries begin at 1 again.)

        Of 100 runs at most.
        """
        path = f"/dags/{self.dag}/dagRuns/~/taskInstances"
        found = self.airflow.get(path, limit=100, task_id="load.prepare")["task_instances"]
        return sum(
            datetime.fromisoformat(t["start_date"]) >= moment for t in found if t["task_id"] == "load.prepare"
        )

    def count(self, copies: int) -> Count:
        expected = [f"{day} {n}" for day in self.days for n in range(RECORDS)] * copies
        return count(self.place.bootstrap, self.dag, expected, ids=f".{self.dag}%2Eload.")

    def right(self, copies: int) -> Count:
        return Count(len(self.days) * RECORDS * copies, 0, 0, 0, ())


@pytest.mark.timeout(2 * SECONDS + 120)
def test_a_backfill_loads_each_day_once_and_the_same_again_loads_nothing(place: Place) -> None:
    """A reprocessed date clears its run in place, and its load is committed already (rule: one-key-loads-once)."""
    backfill = Backfill(place, "days", DAYS)
    for behavior in ("none", "completed"):
        backfill.run(behavior)
        assert backfill.count(1) == backfill.right(1)
        keys = [f"{day}T00:00:00+00:00" for day in backfill.days]
        attempts = [len(place.ledger.attempts(LoadIdentity("airflow", "days.load", key))) for key in keys]
        assert attempts == [1] * DAYS


@pytest.mark.timeout(2 * SECONDS + 120)
def test_the_same_again_with_reload_makes_exactly_one_more_copy(place: Place) -> None:
    """A reload is a load with a key of its own, asked for by name (rule: one-key-loads-once)."""
    backfill = Backfill(place, "days_again", RELOADED_DAYS)
    for copies, behavior in enumerate(("none", "completed"), start=1):
        backfill.run(behavior)
        assert backfill.count(copies) == backfill.right(copies)
