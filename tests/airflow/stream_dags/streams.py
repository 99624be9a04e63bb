"""Streaming queries of text files in ``$TEST_SWITCHES/<DAG>/in``, in runs to their end; see jobs/lines.py."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceStream

HERE = Path(__file__).parent
SWITCHES = os.environ.get("TEST_SWITCHES", "/nonexistent")


def stream_dag(name, of=None, retries=4, retry_delay=1.0, schedule=None, **spark_args):
    """:param of: the DAG whose query this one runs, too."""
    of = of or name
    with DAG(
        name,
        schedule=schedule,
        start_date=datetime(2025, 1, 1),
        # no run of the scheduler's own
        end_date=datetime(2025, 12, 31),
        catchup=False,
        max_active_runs=16,
        default_args={"retries": retries, "retry_delay": timedelta(seconds=retry_delay)},
    ) as dag:
        ExactlyOnceStream(
            "load",
            job=f"{HERE}/jobs/lines.py",
            job_args={"folder": f"{SWITCHES}/{of}/in", "switches": f"{SWITCHES}/{of}"},
            topics=[of],
            checkpoint=f"{SWITCHES}/{of}/checkpoint",
            load_name=f"{of}.load",
            quiet_period=2,
            spark_args=spark_args,
        )
    return dag


streamed = stream_dag("streamed")
# its retry is far away
patient = stream_dag("patient", retry_delay=600.0)
orphaned = stream_dag("orphaned", retry_delay=600.0)
hourly = stream_dag("hourly", schedule="@hourly")
failing = stream_dag("failing_stream", retries=0)
# the query of another DAG
also_streamed = stream_dag("also_streamed", of="shared")
shared = stream_dag("shared")
marked_failed = stream_dag("marked_failed")
marked_success = stream_dag("marked_success")
marked_whole_failed = stream_dag("marked_whole_failed")
marked_whole_success = stream_dag("marked_whole_success")
paused = stream_dag("paused_stream")
# the batch under way is held until then
timed_out = stream_dag("timed_out", retries=0, execution_timeout=timedelta(seconds=180))
in_time = stream_dag("in_time", of="timed_out")
wrong = stream_dag("wrong")
