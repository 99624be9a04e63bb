"""The same load as ``exactly_once.py`` by one bare SparkSubmitOperator."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

HERE = Path(__file__).parent
RECORDS = os.environ.get("BENCH_RECORDS", "1000")
DAILY = CronDataIntervalTimetable("@daily", timezone="UTC")

for name, schedule in (("single", None), ("days", DAILY)):
    with DAG(
        f"at_least_once_{name}",
        catchup=False,
        schedule=schedule,
        start_date=datetime(2025, 1, 1),
        end_date=datetime(2025, 12, 31),
    ):
        SparkSubmitOperator(
            task_id="write",
            application=f"{HERE}/jobs/at_least_once.py",
            application_args=["{{ run_id }}", RECORDS, f"at_least_once_{name}"],
            conn_id="spark_default",
            # as people have it; for ours, prepare sees to it
            env_vars={"PYSPARK_PYTHON": sys.executable},
        )
