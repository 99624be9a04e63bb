"""A backfill with several runs at a time, and the same dates again. ``DAYS=30`` makes it as long as you like."""

from __future__ import annotations

import os
import time
from datetime import date, timedelta
from typing import Any

import pytest

from airflow_kafka_eos.load import LoadIdentity
from tests.airflow.conftest import Place
from tests.airflow.counting import PARTITIONS, Count, count
from tests.airflow.held import RECORDS
from tests.airflow.rest import ENDED, wait_for, wait_for_dag

DAYS = int(os.environ.get("DAYS", "6"))
FIRST = date(2025, 3, 1)
AT_A_TIME = 4
#: A load takes seconds; here is room for a slow machine.
SECONDS = 60 * DAYS + 120
DAG = "days"


def backfill(place: Place, behavior: str) -> None:
    """From the click until every run of it has ended."""
    body = {
        "dag_id": DAG,
        "from_date": f"{FIRST}T00:00:00Z",
        "to_date": f"{FIRST + timedelta(days=DAYS - 1)}T00:00:00Z",
        "max_active_runs": AT_A_TIME,
        "reprocess_behavior": behavior,
    }
    started = time.monotonic()
    number = place.airflow.post("/backfills", body)["id"]

    def over() -> bool:
        done = place.airflow.get(f"/backfills/{number}")["completed_at"] is not None
        return done and all(run["state"] in ENDED for run in runs(place))

    wait_for(over, lambda: f"{[(r['dag_run_id'], r['state']) for r in runs(place)]}", seconds=SECONDS)
    print(f"backfill of {DAYS} days, {behavior}: {time.monotonic() - started:.1f} s")


def runs(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.airflow.get(f"/dags/{DAG}/dagRuns", limit=1000)["dag_runs"]
    return found


def tries(place: Place) -> int:
    """Of all prepare tasks."""
    path = f"/dags/{DAG}/dagRuns/~/taskInstances"
    found = place.airflow.get(path, limit=1000, task_id="load.prepare")["task_instances"]
    return sum(t["try_number"] for t in found if t["task_id"] == "load.prepare")


def right() -> Count:
    return Count(DAYS * RECORDS, 0, 0, 0, ())


@pytest.mark.timeout(2 * SECONDS + 120)
def test_a_backfill_loads_each_day_once_and_the_same_again_loads_nothing(place: Place) -> None:
    """Rule 9: a reprocessed date clears its run in place, and its load is committed already."""
    place.kafka.create_topic(DAG, partitions=PARTITIONS)
    wait_for_dag(place.airflow, DAG)
    expected = [f"{FIRST + timedelta(days=day)} {n}" for day in range(DAYS) for n in range(RECORDS)]
    tried = 0
    for behavior in ("none", "completed"):
        backfill(place, behavior)
        seen = runs(place)
        assert [r["state"] for r in seen] == ["success"] * DAYS
        assert count(place.bootstrap, DAG, expected, ids=".days%2Eload.") == right()
        loads = [LoadIdentity("airflow", f"{DAG}.load", r["logical_date"].replace("Z", "+00:00")) for r in seen]
        assert [len(place.ledger.attempts(load)) for load in loads] == [1] * DAYS
        assert tries(place) >= tried + DAYS, "no run was done again: this tests nothing"
        tried = tries(place)
