"""What airflow_kafka_eos.dag_bundle.MaintenanceDagBundle brings: dags/kafka_eos_maintenance.py, and not paused.

Who names the bundle wants it to run; a file that lies in a folder says less.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import DAG

from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator

with DAG(
    "kafka_eos_maintenance",
    schedule="*/15 * * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["kafka", "exactly-once"],
):
    SweepLeftoversOperator(task_id="sweep")
