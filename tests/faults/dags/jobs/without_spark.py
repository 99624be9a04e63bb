"""The same records without Spark, as a stream that takes a while: what strikes a process can strike in the middle."""

from __future__ import annotations

import os
import time

import pyarrow as pa

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity

BATCHES, PAUSE_S = 8, 0.25
SCHEMA = pa.schema({"key": pa.string(), "value": pa.string()})


def newest_attempt(load_name, key):
    """Which one this process prepares: it is the newest, but where another has just superseded it."""
    with Ledger.open_existing(f"sqlite:///{os.environ['AIRFLOW_HOME']}/kafka_eos_ledger.db") as ledger:
        return ledger.attempts(LoadIdentity("airflow", load_name, key))[-1].number


def load(load_name, key, records, key_count, tasks):
    attempt = newest_attempt(load_name, key)

    def batches():
        for number in range(BATCHES):
            rows = range(int(records) * number // BATCHES, int(records) * (number + 1) // BATCHES)
            keys = [f"k{row % int(key_count)}" for row in rows]
            values = [f"load|{key}|{attempt}|{of}|{row}|0|{'.' * 60}" for of, row in zip(keys, rows, strict=True)]
            yield pa.record_batch([pa.array(keys), pa.array(values)], schema=SCHEMA)
            time.sleep(PAUSE_S)

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())
