"""For test_paused.py: a load that a person approves, between prepare and decide; and a sweep for paused DAGs."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, Transactions
from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator

RECORDS = 200

with DAG(
    "approved",
    schedule=None,
    start_date=datetime(2025, 1, 1),
    default_args={"retries": 1, "retry_delay": timedelta(seconds=1)},
):
    with ExactlyOnceLoad(
        "load",
        sql="SELECT CAST(id AS STRING) AS key, concat('{{ run_id }} ', id) AS value "
        f"FROM range(0, {RECORDS}, 1, 2)",
        topics=["{{ run_id }}"],
        transactions=Transactions(quiet_period=timedelta(seconds=2)),
    ) as load:
        approve = ApprovalOperator(task_id="approve", subject="Commit it?", fail_on_reject=True)
    load.prepare >> approve >> load.decide

with DAG("sweeps_paused", schedule=None, start_date=datetime(2025, 1, 1)):
    SweepLeftoversOperator(
        task_id="sweep",
        paused_after=timedelta(seconds=1),
        quiet_period=timedelta(seconds=1),
        fail_on_problems=False,
    )
