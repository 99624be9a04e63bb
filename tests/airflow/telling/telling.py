"""A load that was committed before the DAG runs, told of; and DAGs that want to hear of it."""

from __future__ import annotations

import os
from datetime import datetime

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, task

from airflow_kafka_eos.sensors import LoadedSensor

START = datetime(2026, 1, 1)
TOPIC = os.environ.get("TEST_TOPIC", "topic")
TOLD = Asset(name="a name of the reader's own", uri=f"kafka://events/{TOPIC}")
REPORT = Asset("file:///report")

with DAG("telling", schedule=None, start_date=START):
    LoadedSensor(
        task_id="loaded",
        load_name="a.b/ü %",
        load_key=os.environ.get("TEST_KEY", "told"),
        topics=[os.environ.get("TEST_LOADED_TOPIC", TOPIC), os.environ.get("TEST_SECOND_TOPIC", "second"), "empty"],
        asset_server="events",
        outlets=[REPORT],
        poke_interval=0.5,
    )


def reader(name, schedule):
    with DAG(name, schedule=schedule, start_date=START, is_paused_upon_creation=False) as dag:
        task(lambda: None, task_id="read")()
    return dag


reader_of_topic = reader("reader_of_topic", [TOLD])
reader_of_report = reader("reader_of_report", [REPORT])
partitioned_reader = reader("partitioned_reader", PartitionedAssetTimetable(assets=TOLD))
