"""DAGs whose runs the tests play themselves: nothing runs them, their attempts are made by the protocol's own calls."""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, Submit

CONNECTIONS = {
    "orders": "kafka_default",
    "other": "kafka_default",
    # deleted by a test
    "doomed": "kafka_default",
    # nobody listens there
    "away": "kafka_away",
    "unnamed": "{{ var.value.cluster }}",
}

with DAG("unnamed_ledger", schedule=None, start_date=datetime(2026, 1, 1), is_paused_upon_creation=False):
    ExactlyOnceLoad("load", sql="SELECT 1", topics=["orders"], ledger_conn_id="{{ var.value.ledger }}")

with DAG("own_operator", schedule=None, start_date=datetime(2026, 1, 1), is_paused_upon_creation=False):
    ExactlyOnceLoad(
        "load", sql="SELECT 1", topics=["orders"],
        submit=Submit(BashOperator, runs_here=True, bash_command="run {{ kafka_eos.spec }}"),
    )  # fmt: skip

for name, connection in CONNECTIONS.items():
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1), is_paused_upon_creation=False) as dag:
        ExactlyOnceLoad("load", sql="SELECT 1", topics=["orders"], kafka_conn_id=connection)
    globals()[name] = dag
