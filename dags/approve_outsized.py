"""A person approves a load of unusual size, between prepare and decide: its records are written, and nobody sees them.

Approved, it is committed as it stands. Rejected, decide does not run, cleanup ends it, and the run fails.

Needs the connections `kafka_default` and `spark_default`, a topic `approved_orders`, a broker that grants
two-phase commit, and a person who answers in Airflow's UI.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, Transactions

USUAL = 50  # records


class ApproveOutsized(ApprovalOperator):
    """Asks only when there is something to ask."""

    def execute(self, context):
        prepared = context["ti"].xcom_pull(task_ids="load_orders.prepare")
        # with a verdict it is decided already: what was lost of it may be prepared again, that is no question any more
        if "verdict" not in prepared and prepared["records"] > USUAL:
            super().execute(context)

    def execute_complete(self, context, event):
        try:
            super().execute_complete(context, event)
        except HITLRejectException as e:
            # for good: as any other failure, it would be tried again, and the person asked once more
            raise AirflowFailException(str(e)) from e


with DAG(
    "approve_outsized",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    default_args={"retries": 2},
    params={"count": 100},
    tags=["kafka", "exactly-once"],
):
    with ExactlyOnceLoad(
        "load_orders",
        sql="SELECT concat('order ', id, ' of {{ run_id }}') AS value FROM range({{ params.count }})",
        topics=["approved_orders"],
        # people take their time: without it, less than hold_time
        transactions=Transactions(two_phase_commit="required"),
    ) as load:
        approve = ApproveOutsized(
            task_id="approve",
            subject="Load of {{ ti.xcom_pull(task_ids='load_orders.prepare')['records'] }} records: commit it?",
            response_timeout=timedelta(hours=12),
            fail_on_reject=True,
        )
    load.prepare >> approve >> load.decide
