"""Rows in PostgreSQL and records in Kafka become true together: the ledger lives in the warehouse (docs/dual-write.md).

Needs the connections `kafka_default` and `spark_default`, a topic `orders`, a broker that grants two-phase commit, a
connection `warehouse` of type postgres with its driver (the extra `postgres`), and once
`airflow-kafka-eos ledger upgrade --conn-id warehouse`.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import ExactlyOnceLoad, Transactions

DAY = "{{ data_interval_start | ds }}"

with DAG(
    "dual_write_postgresql",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    tags=["kafka", "exactly-once"],
):
    ExactlyOnceLoad(
        "load_orders",
        sql=f"SELECT CAST(id AS STRING) AS key, concat('order ', id, ' of {DAY}') AS value FROM range(100)",
        load_key=DAY,
        topics=["orders"],
        ledger_conn_id="warehouse",
        transactions=Transactions(two_phase_commit="required"),
        dual_write_sql=[
            "CREATE TABLE IF NOT EXISTS loaded_days (day DATE PRIMARY KEY, records BIGINT NOT NULL)",
            ("INSERT INTO loaded_days VALUES (:day, :records)", {"day": DAY}),
        ],
    )
