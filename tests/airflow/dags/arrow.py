"""Loads that Airflow's worker prepares itself, which stop at ``writing`` with a transaction open (see clicks.py)."""

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


def stop_at_writing(run_id):
    here = Path(SWITCHES, run_id, "writing")
    try:
        here.with_suffix(".hold").rename(here.with_suffix(".here"))
    except FileNotFoundError:
        return
    here.with_suffix(".here").write_text(str(os.getpid()))
    until = time.monotonic() + HELD_SECONDS
    while not here.with_suffix(".go").exists() and time.monotonic() < until:
        time.sleep(0.02)


@exactly_once_load(
    topics=["{{ run_id }}"], group_id="load", engine="arrow", decide_at_once=False,
    transactions=Transactions(quiet_period=timedelta(seconds=2)),
)  # fmt: skip
def rows(run_id):
    import pyarrow as pa

    # its keys are so long that a part is on its way before the second half is asked for
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])

    def halves():
        for begin in (0, RECORDS // 2):
            if begin:
                stop_at_writing(run_id)
            numbers = range(begin, begin + RECORDS // 2)
            keys, values = [f"{n}" + "x" * 50_000 for n in numbers], [f"{run_id} {n}" for n in numbers]
            yield pa.record_batch([keys, values], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, halves())


with DAG(
    "arrow",
    schedule=None,
    start_date=datetime(2025, 1, 1),
    default_args={"retries": 4, "retry_delay": timedelta(seconds=1)},
):
    rows(run_id="{{ run_id }}")
