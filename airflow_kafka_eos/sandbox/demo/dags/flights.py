"""The flights of 2013, day by day, into Kafka exactly once: the demo's DAG, and a template for a daily backfill."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pendulum
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad

HERE = Path(__file__).parent
SOURCE = os.environ.get("FLIGHTS_SOURCE", str(HERE.parent / "source"))


def arrived_completely(manifest):
    """The author's check: each day's file comes with a control file that says how many flights there are."""
    day = manifest.attempt.load.key[:10]
    expected = int(Path(SOURCE, f"{day}.count").read_text())
    if manifest.records != expected:
        return f"{manifest.records} of {expected} flights of {day} have arrived"


with DAG(
    "flights",
    schedule="@daily",
    start_date=pendulum.datetime(2013, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2013, 12, 31, tz="UTC"),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=2)},
    tags=["kafka", "exactly-once"],
):
    ExactlyOnceLoad(
        "load_flights",
        job=f"{HERE}/jobs/flights.py:flights_of_day",
        job_args={"source": SOURCE, "day": "{{ ds }}"},
        topics=["flights"],
        check=arrived_completely,
        quiet_period=timedelta(seconds=3),
    )
