"""Every form in which an author may write a load, in a sub-folder of the bundle; each writes ROWS rows of its run.

The steps by hand use a connection that only Airflow's own database has.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, TaskGroup, dag, task, timezone
from team.shared import worded

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Transactions, exactly_once_load
from airflow_kafka_eos.operators.begin import BeginLoadOperator
from airflow_kafka_eos.operators.commit import CommitLoadOperator
from airflow_kafka_eos.operators.decide import DecideLoadOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor

ROWS = 20
DAGS = {
    "schedule": None,
    "start_date": datetime(2026, 1, 1),
    "default_args": {"retries": 3, "retry_delay": timedelta(seconds=1)},
}
SQL = f"SELECT concat(:word, ' ', id) AS value FROM range(0, {ROWS}, 1, 2)"
RUN = {"word": "{{ run_id }}"}
QUICK = Transactions(quiet_period=1)


def in_utc(number):
    return timezone.utc is not None and number


with DAG("forms_class", **DAGS):
    ExactlyOnceLoad("load", sql=SQL, job_args=RUN, topics=["forms_class"], transactions=QUICK)


@exactly_once_load(topics=["forms_decorated"], checks=Checks(min_records=1), transactions=QUICK)
def load_numbers(spark, word, count):
    """With a module of the bundle in the driver, and on executors a helper that needs Airflow."""
    from pyspark.sql.functions import udf

    on_executors = udf(lambda number: str(in_utc(number)), "string")
    rows = spark.range(int(count), numPartitions=2)
    return rows.select(on_executors(rows.id).alias("value")).selectExpr(f"concat('{worded(word, '')}', value) AS value")


@dag(**DAGS)
def forms_decorated():
    @task
    def how_many():
        return ROWS

    load_numbers(word="{{ run_id }}", count=how_many())


forms_decorated()


def overridden():
    with DAG("forms_override", **DAGS) as made:
        again = load_numbers.override(group_id="again", load_name="forms_override.again", topics=["forms_override"])
        again(word="{{ run_id }}", count=ROWS)
    return made


overridden()

with DAG("forms_expand", **DAGS):
    ExactlyOnceLoad.partial("tables", sql=SQL, job_args=RUN, transactions=QUICK).expand(
        topic=["forms_expand_one", "forms_expand_two"]
    )

with DAG("forms_expand_kwargs", **DAGS):

    @task
    def tables(run_id=None):
        return [
            {"item": name, "topics": ["forms_expand_kwargs"], "job_args": {"word": f"{run_id} {name}"}}
            for name in ("one", "two")
        ]

    ExactlyOnceLoad.partial("tables", sql=SQL, transactions=QUICK).expand_kwargs(
        tables(), names=["item", "topics", "job_args"]
    )

with DAG("forms_by_hand", **DAGS), TaskGroup("load"):
    named = {"load_name": "forms_by_hand", "kafka_conn_id": "forms_kafka"}
    begin = BeginLoadOperator(task_id="begin", item="any", **named)
    named["load_key"] = "{{ ti.xcom_pull(task_ids='load.begin', map_indexes=ti.map_index)['load_key'] }}"
    prepare = PrepareLoadOperator(task_id="prepare", sql=SQL, job_args=RUN, topics=["forms_by_hand"], **named)
    decide = DecideLoadOperator(task_id="decide", min_records=ROWS, max_records=ROWS, **named)
    commit = CommitLoadOperator(task_id="commit", **named)
    cleanup = CleanupLoadSensor(task_id="cleanup", quiet_period=1, **named)
    loaded = LoadedSensor(task_id="loaded", topics=["forms_by_hand"], **named)
    begin >> prepare >> decide >> commit >> [cleanup, loaded]
    cleanup.as_teardown(setups=begin, on_failure_fail_dagrun=True)
