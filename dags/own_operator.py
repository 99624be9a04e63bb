"""A load whose Spark runs behind an operator of your own: here a BashOperator that calls spark-submit.

Needs `spark-submit` on the workers' PATH, the connection `kafka_default`, and the topic `measurements`.
"""

from __future__ import annotations

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import ExactlyOnceLoad, Submit

DAY = "{{ data_interval_start | ds }}"

with DAG(
    "own_operator",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    tags=["kafka", "exactly-once"],
):
    ExactlyOnceLoad(
        "load",
        sql="SELECT 'sensor ' || id % 3 AS key, :day || ' ' || id AS value FROM range(1000)",
        job_args={"day": DAY},
        load_key=DAY,
        topics=["measurements"],
        submit=Submit(
            BashOperator,
            runs_here=True,
            bash_command="spark-submit --master 'local[2]' {{ kafka_eos.application }} --spec {{ kafka_eos.spec }}",
            env={"PYSPARK_PYTHON": "{{ kafka_eos.python }}"},
            append_env=True,
        ),
    )
