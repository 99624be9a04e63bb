"""Loads of the campaign that go through Airflow and Spark for real. What a run loads stands in its conf.

Each task leaves its process's id in ``$FAULTS_PIDS/<run id>/<task>``, for the campaign to strike it.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from itertools import product
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


#: by engine: its job, and what else it is told by
ENGINES = {
    "spark-submit": ("numbered.py", {}),
    "arrow": ("without_spark.py", {"engine": "arrow"}),
    "connect": ("by_connect.py", {"spark_conn_id": "spark_connect"}),
}

for engine, scope in product(ENGINES, ("task", "load")):
    job, arguments = ENGINES[engine]
    name = f"{engine}_{scope}"
    # who works beside Spark's driver has no specification to read the attempt from
    told = {} if engine == "spark-submit" else {"load_name": name}
    with DAG(
        name,
        schedule=None,
        start_date=datetime(2025, 1, 1),
        max_active_runs=8,
        params={"topic": "", "key": "", "records": 0, "key_count": 1, "tasks": 1},
        default_args={"retries": 2, "retry_delay": timedelta(seconds=1), "pre_execute": note},
    ):
        ExactlyOnceLoad(
            "load",
            job=f"{HERE}/jobs/{job}",
            job_args=told | {of: f"{{{{ params.{of} }}}}" for of in ("key", "records", "key_count", "tasks")},
            topics=["{{ params.topic }}"],
            load_name=name,
            load_key="{{ params.key }}",
            transactions=Transactions(scope=scope, quiet_period=timedelta(seconds=2)),
            **arguments,
        )
