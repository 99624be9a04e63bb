"""The same records by a Spark Connect server. What takes a while are its tasks."""

from __future__ import annotations

import os
import time

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity

BATCH, PAUSE_S = 500, 0.25


def slowly(batches):
    """Small batches: what strikes a task can strike it in the middle."""
    for batch in batches:
        for begin in range(0, batch.num_rows, BATCH):
            yield batch.slice(begin, BATCH)
            time.sleep(PAUSE_S)


def load(spark, load_name, key, records, key_count, tasks):
    with Ledger.open_existing(f"sqlite:///{os.environ['AIRFLOW_HOME']}/kafka_eos_ledger.db") as ledger:
        # it is the newest one that this process prepares, but where another has just superseded it
        attempt = ledger.attempts(LoadIdentity("airflow", load_name, key))[-1].number
    of_key = f"concat('k', spark_partition_id(), '-', id % {int(key_count)})"
    value = f"concat('load|{key}|{attempt}|', {of_key}, '|', id, '|0|', repeat('.', 60))"
    rows = spark.range(0, int(records), 1, int(tasks)).selectExpr(f"{of_key} AS key", f"{value} AS value")
    return rows.mapInArrow(slowly, rows.schema)
