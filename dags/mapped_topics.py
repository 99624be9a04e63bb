"""One mapped load per topic. What there is to load is found at run time, so are the keys that tell the loads apart.

Needs the connections `kafka_default` and `spark_default`, and topics `invoices` and `payments`.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, task, task_group
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import ExactlyOnceLoad

TOPICS = ("invoices", "payments")

with DAG(
    "mapped_topics",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    tags=["kafka", "exactly-once"],
):

    @task
    def what_to_load(day):
        """The key never holds the map index: a topic that comes or goes would make other loads of all behind it."""
        return [{"topic": t, "key": f"{t} {day}", "sql": f"SELECT '{t} of {day}' AS value"} for t in TOPICS]

    @task_group
    def load_topic(topic, key, sql):
        ExactlyOnceLoad("load", sql=sql, topics=[topic], load_key=key)

    load_topic.expand_kwargs(what_to_load("{{ data_interval_start | ds }}"))
