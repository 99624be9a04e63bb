"""A small load that Airflow's worker prepares itself: no Spark, no JVM.

Needs the connection `kafka_default`, and the topic `readings`.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import Checks, exactly_once_load

DAY = "{{ data_interval_start | ds }}"


@exactly_once_load(topics=["readings"], load_key=DAY, engine="arrow", checks=Checks(max_records=100_000))
def load_readings(day):
    """Whatever speaks the Arrow C stream protocol: a pyarrow dataset, a DuckDB query, a Polars or pandas DataFrame."""
    import pyarrow as pa

    hours = range(24)
    return pa.table({"key": [f"sensor {h % 3}" for h in hours], "value": [f"{day} {h:02}:00 21.5" for h in hours]})


with DAG(
    "without_spark",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    tags=["kafka", "exactly-once"],
):
    load_readings(day=DAY)
