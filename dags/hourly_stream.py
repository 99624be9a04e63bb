"""A streaming query that takes, each hour, what has come since the last one: a file of JSON lines for each batch.

Each batch is a load of its own, committed as it is done. Which files are done, the checkpoint and the ledger say, not
the run's date: a retry or a clear goes on there, and the first run of a backfill takes all there is.

Checkpoint and files are below `STREAM_FOLDER`, `/tmp/kafka_eos_stream` by default: in production an object store, or a
folder that all workers mount.

The job stands in this file, so Spark's Python needs Airflow, too; in a file of its own, or an installed package, it
needs none.

Needs the connections `kafka_default` and `spark_default`, and the topic `parcels`.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceStream

FOLDER = os.environ.get("STREAM_FOLDER", "/tmp/kafka_eos_stream")


def load(spark, folder):
    """What Spark runs: a streaming DataFrame with the columns of Spark's own Kafka sink."""
    os.makedirs(folder, exist_ok=True)  # Spark wants it to be there
    parcels = spark.readStream.schema("id STRING, state STRING").option("maxFilesPerTrigger", 1).json(folder)
    return parcels.selectExpr("id AS key", "to_json(struct(*)) AS value")


with DAG(
    "hourly_stream",
    schedule="@hourly",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,  # a run of the past would take what there is now, as each run does
    default_args={"retries": 2, "retry_delay": pendulum.duration(seconds=30)},
    tags=["kafka", "exactly-once"],
):
    ExactlyOnceStream(
        "parcels",
        job=f"{__file__}:load",
        job_args={"folder": f"{FOLDER}/in"},
        topics=["parcels"],
        checkpoint=f"{FOLDER}/checkpoint",
    )
