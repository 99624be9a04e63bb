"""What an author writes: mapped loads, decorated functions, reloads. Run by ``dag.test()``."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, dag, task

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Transactions, exactly_once_load

FACTOR = 3
COMMON = {"transactions": Transactions(quiet_period=timedelta(seconds=1), max_transactional_ids=None)}
DAGS = {"schedule": None, "start_date": datetime(2026, 1, 1), "catchup": False}
TABLES = {"one": 1, "two": 2, "three": 3}


def tripled(number):
    return number * FACTOR


with DAG("mapped_topics", **DAGS):
    ExactlyOnceLoad.partial(
        "tables",
        sql="SELECT concat(:day, ' ', id) AS value FROM range(0, 5, 1, 2)",
        job_args={"day": "{{ ds }}"},
        **COMMON,
    ).expand(topic=["mapped-one", "mapped-two", "mapped-three"])

with DAG("mapped_xcom", **DAGS):

    @task
    def tables():
        return [
            {"item": name, "topics": ["mapped-xcom"], "job_args": {"name": name, "count": count}}
            for name, count in TABLES.items()
        ]

    ExactlyOnceLoad.partial(
        "tables", sql="SELECT concat(:name, ' ', id) AS value FROM range(100) WHERE id < :count", **COMMON
    ).expand_kwargs(tables(), names=["item", "topics", "job_args"])


@exactly_once_load(topics=["decorated"], checks=Checks(min_records=1), **COMMON)
def load_numbers(spark, count, day, rows=None):
    """A function of the DAG file, with a helper and a constant of it, in a UDF too."""
    from pyspark.sql.functions import udf

    on_executors = udf(lambda number: str(tripled(number)), "string")
    frame = spark.range(count, numPartitions=2)
    return frame.select(on_executors(frame.id).alias("value")).selectExpr(f"concat('{day} ', value) AS value")


with DAG("decorated", **DAGS):

    @task
    def how_many():
        return 4

    load_numbers(count=how_many(), day="{{ ds }}")


@dag(**DAGS)
def decorated_closures():
    """Functions with variables around them, one name for both: the driver must find each one's own."""
    for word in ("red", "blue"):

        @exactly_once_load(group_id=f"load_{word}", topics=["closures"], **COMMON)
        def load(spark, word=word):
            return spark.range(2).selectExpr(f"concat('{word} ', id) AS value")

        load()


decorated_closures()


def reloading(dag_id, on_committed):
    with DAG(dag_id, **DAGS) as made:
        ExactlyOnceLoad(
            "load",
            sql="SELECT CAST(id AS STRING) AS value FROM range(0, 3, 1, 1)",
            topics=[dag_id],
            on_committed=on_committed,
            **COMMON,
        )
    return made


skipped = reloading("on_committed_skip", "skip")
reloaded = reloading("on_committed_reload", "{{ 'reload' }}")
