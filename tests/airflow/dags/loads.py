"""Small loads for the tests that run a real Airflow; the environment says where the topic and the switches are."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Transactions

HERE = Path(__file__).parent
SWITCHES = Path(os.environ.get("TEST_SWITCHES", "/nonexistent"))


def not_refused(manifest):
    if (SWITCHES / "refuse").exists():
        return "the switch is set"


def load_dag(name: str, **arguments):
    with DAG(
        name,
        schedule=None,
        start_date=datetime(2026, 1, 1),
        default_args={"retries": 1, "retry_delay": timedelta(seconds=1)},
    ) as dag:
        ExactlyOnceLoad(
            "load",
            job=f"{HERE}/jobs/rows.py",
            job_args={"prefix": f"{name} {{{{ run_id }}}}", "count": 200},
            topics=[name],
            transactions=Transactions(quiet_period=timedelta(seconds=2)),
            **arguments,
        )
    return dag


plain = load_dag("plain")
refused = load_dag("refused", checks=Checks(check=not_refused))
in_worker = load_dag("in_worker", deferrable=False, checks=Checks(min_records=200, max_records=200))
reloaded = load_dag("reloaded", on_committed="reload")
