"""A DAG whose runs the tests play themselves: it is paused, its attempts are made by the protocol's own calls."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad

for name in ("orders", "other"):
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1), is_paused_upon_creation=True) as dag:
        ExactlyOnceLoad("load", sql="SELECT 1", topics=["orders"])
    globals()[name] = dag
