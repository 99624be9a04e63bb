"""For test_on_call.py: a load whose job fails."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, Transactions

HERE = Path(__file__).parent

with DAG(
    "failing",
    schedule=None,
    start_date=datetime(2025, 1, 1),
    # nobody waits for it: the test looks at what waits for its retry
    default_args={"retries": 1, "retry_delay": timedelta(hours=1), "poke_interval": timedelta(seconds=1)},
):
    ExactlyOnceLoad(
        "load",
        job=f"{HERE}/jobs/fails.py",
        topics=["failing"],
        transactions=Transactions(quiet_period=timedelta(seconds=8)),
        deferrable=False,
    )
