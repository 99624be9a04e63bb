"""A file that asks Airflow for a variable outside of functions: here the Spark driver would get the default."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Variable

from airflow_kafka_eos import Transactions, exactly_once_load

FACTOR = int(Variable.get("forms_factor", default="1"))


@exactly_once_load(topics=["forms_asks"], transactions=Transactions(quiet_period=1))
def load_numbers(spark):
    return spark.range(FACTOR).selectExpr("CAST(id AS STRING) AS value")


with DAG(
    "forms_asks",
    schedule=None,
    start_date=datetime(2026, 1, 1),
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
):
    load_numbers()
