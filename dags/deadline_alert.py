"""A load that is not done an hour after its run was queued: Airflow's deadline alert says in what state it is.

Needs Airflow 3.2, the connections `kafka_default` and `spark_default`, and a topic `events`.
"""

from __future__ import annotations

import os
from datetime import timedelta

import pendulum
from airflow.sdk import DAG, AsyncCallback, CronDataIntervalTimetable, DeadlineAlert, DeadlineReference

from airflow_kafka_eos import ExactlyOnceLoad
from airflow_kafka_eos.triggers import report_unfinished_loads

DAY = "{{ data_interval_start | ds }}"
DEADLINE = timedelta(seconds=int(os.environ.get("LOAD_DEADLINE_S", "3600")))

with DAG(
    "deadline_alert",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=DEADLINE,
        callback=AsyncCallback(report_unfinished_loads, kwargs={"load_name": "deadline_alert.load_events"}),
    ),
    tags=["kafka", "exactly-once"],
):
    ExactlyOnceLoad(
        "load_events",
        sql=f"SELECT concat('event ', id, ' of {DAY}') AS value FROM range(10)",
        load_key=DAY,
        topics=["events"],
    )
