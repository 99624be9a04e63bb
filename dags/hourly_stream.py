"""A streaming query that takes, each hour, what has come since the last one: a file of JSON lines for each batch.

Each batch is a load of its own, committed as it is done. Which files are done, the checkpoint and the ledger say, not
the run's date: a retry or a clear goes on there, and the first run of a backfill takes all there is.

Checkpoint and files are below `STREAM_FOLDER`, `/tmp/kafka_eos_stream` by default: in production an object store, or a
folder that all workers mount.

The job, a function of a Spark session, is in `hourly_stream_job.py`, beside this file.

Needs the connections `kafka_default` and `spark_default`, and the topic `parcels`.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceStream

FOLDER = os.environ.get("STREAM_FOLDER", "/tmp/kafka_eos_stream")

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
        job=f"{os.path.dirname(__file__)}/hourly_stream_job.py:load",
        job_args={"folder": f"{FOLDER}/in"},
        topics=["parcels"],
        checkpoint=f"{FOLDER}/checkpoint",
    )
