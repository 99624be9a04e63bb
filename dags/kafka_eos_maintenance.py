"""Every 15 minutes: sweep what no run is left to sweep, send the numbers, and fail when something needs a person.

One per ledger: this one is for the ledger and the namespace that Airflow's section ``[kafka_eos]`` names. Its option
``abandoned_after`` must be longer than any run takes from begin to decide, retries included. What each finding means,
and what to do: docs/howto-on-call.md.

Needs the connection `kafka_default`, and to be unpaused for good. Where there is no ledger yet, it is skipped.
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
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    tags=["kafka", "exactly-once"],
):
    SweepLeftoversOperator(task_id="sweep")
