"""DAGs that the example DAGs' assets wake, or must not wake."""

from __future__ import annotations

import json
import os
from datetime import datetime

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, task

SERVER = json.loads(os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"])["extra"]["bootstrap.servers"]
# a name of the reader's own: it is the URI that makes it the asset of the load
ORDERS = Asset(name="orders of the warehouse", uri=f"kafka://{SERVER}/orders")
CLICKS = Asset("kafka://events/clicks")


def reader(name, schedule, asset):
    with DAG(name, schedule=schedule, start_date=datetime(2026, 1, 1)) as dag:

        @task
        def what_is_new(triggering_asset_events=None):
            return [event.extra for event in triggering_asset_events[asset]]

        what_is_new()
    return dag


plain_reader = reader("plain_reader", [ORDERS], ORDERS)
partitioned_reader_of_plain = reader(
    "partitioned_reader_of_plain", PartitionedAssetTimetable(assets=ORDERS), ORDERS
)
plain_reader_of_partitions = reader("plain_reader_of_partitions", [CLICKS], CLICKS)
