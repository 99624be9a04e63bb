"""A load that reads on, behind a task of the author's: numbers, up to what a file of the test says by then."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import Cursor, Transactions, exactly_once_load

HERE = Path(os.environ.get("TEST_SWITCHES", "/nonexistent"), "reading_on")
HELD_SECONDS = 240.0


class Numbers:
    """All numbers below what the file says."""

    def bounds(self, since):
        return since, int((HERE / "end").read_text())

    def check(self, since, until):
        pass


def stop(run_id):
    here = HERE / f"{run_id}.hold"
    try:
        here.rename(here.with_suffix(".here"))
    except FileNotFoundError:
        return
    here.with_suffix(".here").write_text(str(os.getpid()))
    until = time.monotonic() + HELD_SECONDS
    while not here.with_suffix(".go").exists() and time.monotonic() < until:
        time.sleep(0.02)


@task
def prefix():
    return "n"


@exactly_once_load(
    topics=["reading_on"], group_id="load", engine="arrow", cursor=Cursor(source=Numbers(), first_since=0),
    load_key="{{ run_id }}", transactions=Transactions(quiet_period=timedelta(seconds=2)),
)  # fmt: skip
def rows(prefix, run_id, since, until):
    import pyarrow as pa

    stop(run_id)
    return pa.table({"value": [f"{prefix}{n}" for n in range(since, until)]})


with DAG(
    "reading_on",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=datetime(2025, 3, 1),
    end_date=datetime(2025, 3, 3),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 60, "retry_delay": timedelta(seconds=1)},
):
    rows(prefix=prefix(), run_id="{{ run_id }}")
