"""The same load twice: exactly once by the task group, and at least once by one bare SparkSubmitOperator."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad

HERE = Path(__file__).parent
RECORDS = int(os.environ.get("BENCH_RECORDS", "1000"))


def loads(name, schedule=None):
    """Manual runs write to a topic of their DAG's name; so do those of a backfill."""
    run = {"schedule": schedule, "start_date": datetime(2025, 1, 1), "end_date": datetime(2025, 12, 31)}
    with DAG(f"exactly_once_{name}", catchup=False, **run) as exactly_once:
        ExactlyOnceLoad(
            "load",
            job=f"{HERE}/jobs/rows.py",
            job_args={"prefix": "{{ run_id }}", "count": RECORDS},
            topics=[f"exactly_once_{name}"],
        )
    with DAG(f"at_least_once_{name}", catchup=False, **run) as at_least_once:
        SparkSubmitOperator(
            task_id="write",
            application=f"{HERE}/jobs/at_least_once.py",
            application_args=["{{ run_id }}", str(RECORDS), f"at_least_once_{name}"],
            conn_id="spark_default",
            # as people have it; for ours, prepare sees to it
            env_vars={"PYSPARK_PYTHON": sys.executable},
        )
    return exactly_once, at_least_once


single = loads("single")
days = loads("days", "@daily")
