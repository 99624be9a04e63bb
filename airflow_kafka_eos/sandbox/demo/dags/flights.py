"""The flights of 2013, day by day, into Kafka exactly once: the demo's DAG, and a template for a daily backfill."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Transactions

# what the job reads and what names the load: one template, so that neither can be finer than the other
DAY = "{{ data_interval_start | ds }}"
HERE = Path(__file__).parent
SOURCE = os.environ.get("FLIGHTS_SOURCE", str(HERE.parent / "source"))


def arrived_completely(manifest):
    """The author's check: each day's file comes with a control file that says how many flights there are."""
    day = manifest.attempt.load.key.partition("~")[0]
    expected = int(Path(SOURCE, f"{day}.count").read_text())
    if manifest.records != expected:
        return f"{manifest.records} of {expected} flights of {day} have arrived"


with DAG(
    "flights",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),  # a run is of a day that is over
    start_date=pendulum.datetime(2013, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2013, 12, 31, tz="UTC"),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=2)},
    tags=["kafka", "exactly-once"],
):
    ExactlyOnceLoad(
        "load_flights",
        job=f"{HERE}/jobs/flights.py:flights_of_day",
        job_args={"source": SOURCE, "day": DAY},
        load_key=DAY,
        topics=["flights"],
        checks=Checks(check=arrived_completely),
        transactions=Transactions(quiet_period=timedelta(seconds=3)),
    )
