"""The load of ``exactly_once.py`` by a Spark Connect server. A file of its own: a task imports its own alone."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import ExactlyOnceLoad

HERE = Path(__file__).parent
RECORDS = int(os.environ.get("BENCH_RECORDS", "1000"))
DAILY = CronDataIntervalTimetable("@daily", timezone="UTC")

for name, schedule in (("single", None), ("days", DAILY)):
    with DAG(
        f"exactly_once_connect_{name}",
        catchup=False,
        schedule=schedule,
        start_date=datetime(2025, 1, 1),
        end_date=datetime(2025, 12, 31),
    ):
        ExactlyOnceLoad(
            "load",
            spark_conn_id="spark_connect",
            job=f"{HERE}/jobs/rows.py",
            job_args={"prefix": "{{ run_id }}", "count": RECORDS},
            topics=[f"exactly_once_connect_{name}"],
        )
