"""Loads by a Spark Connect server, whose executors stop at ``writing`` with a transaction open (see clicks.py)."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_eos import Transactions, exactly_once_load

SWITCHES = os.environ.get("TEST_SWITCHES", "/nonexistent")
HELD_SECONDS = 240.0
RECORDS = 200


def stop_at_writing(switches, run_id):
    here = Path(switches, run_id, "writing")
    try:
        here.with_suffix(".hold").rename(here.with_suffix(".here"))
    except FileNotFoundError:
        return
    here.with_suffix(".here").write_text(str(os.getpid()))
    until = time.monotonic() + HELD_SECONDS
    while not here.with_suffix(".go").exists() and time.monotonic() < until:
        time.sleep(0.02)


def load(spark, run_id, switches):
    import pyarrow as pa
    from pyspark.sql.types import StringType, StructField, StructType

    Path(switches, run_id, "client").write_text(str(os.getpid()))

    def halves(batches):
        for batch in batches:
            for first in batch.column(0).to_pylist():
                for begin in (first, first + 50):
                    if begin == 50:
                        stop_at_writing(switches, run_id)
                    numbers = range(begin, begin + 50)
                    # its keys are so long, and its batches so small, that a part is on its way before the second half
                    # is asked for: Spark collects 64 KB before it hands on anything
                    keys, values = [f"{n}" + "x" * 50_000 for n in numbers], [f"{run_id} {n}" for n in numbers]
                    made = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], ["key", "value"])
                    for row in range(made.num_rows):
                        yield made.slice(row, 1)

    schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
    return spark.range(0, RECORDS, 100, numPartitions=2).mapInArrow(halves, schema)


for dag_id, scope in (("connect", "task"), ("connect_whole", "load")):
    with DAG(
        dag_id,
        schedule=None,
        start_date=datetime(2025, 1, 1),
        default_args={"retries": 6, "retry_delay": timedelta(seconds=1)},
    ):
        exactly_once_load(
            topics=["{{ run_id }}"], group_id="load", spark_conn_id="spark_connect", decide_at_once=False,
            # the writer gets rows while others are held back: a batch of 50,000 rows would wait for them
            spark_args={"conf": {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}},
            transactions=Transactions(scope=scope, quiet_period=timedelta(seconds=2)),
        )(load)(run_id="{{ run_id }}", switches=SWITCHES)  # fmt: skip
