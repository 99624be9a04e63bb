"""Loads of the campaign that go through Airflow and Spark for real. What a run loads stands in its conf.

Each task leaves its process's id in ``$FAULTS_PIDS/<run id>/<task>``, for the campaign to strike it.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, Transactions

HERE = Path(__file__).parent


def note(context):
    folder = Path(os.environ["FAULTS_PIDS"], context["run_id"])
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{os.getpid()}"
    new.write_text(str(os.getpid()))
    new.rename(folder / context["ti"].task_id.rpartition(".")[2])


for scope in ("task", "load"):
    with DAG(
        f"real_{scope}",
        schedule=None,
        start_date=datetime(2025, 1, 1),
        max_active_runs=8,
        params={"topic": "", "key": "", "records": 0, "key_count": 1, "tasks": 1},
        default_args={"retries": 2, "retry_delay": timedelta(seconds=1), "pre_execute": note},
    ):
        ExactlyOnceLoad(
            "load",
            job=f"{HERE}/jobs/numbered.py",
            job_args={name: f"{{{{ params.{name} }}}}" for name in ("key", "records", "key_count", "tasks")},
            topics=["{{ params.topic }}"],
            load_name=f"real_{scope}",
            load_key="{{ params.key }}",
            transactions=Transactions(scope=scope, quiet_period=timedelta(seconds=2)),
        )
