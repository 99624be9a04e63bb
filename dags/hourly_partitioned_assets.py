"""An hourly incremental load whose run has a partition key, and a DAG that each loaded hour wakes.

The hour is the load's key, the partition of the asset's event, and what the query selects. Events of a run with a
partition key wake DAGs with a partitioned timetable, and no others (docs/assets.md).

Needs Airflow 3.2, the connections `kafka_default` and `spark_default`, and a topic `clicks`.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Asset, CronPartitionTimetable, PartitionedAssetTimetable, task

from airflow_kafka_eos import ExactlyOnceLoad

CLUSTER = "events"  # a name for the cluster: the asset stays the same when its brokers move
CLICKS = Asset(f"kafka://{CLUSTER}/clicks")

with DAG(
    "hourly_partitioned_load",
    schedule=CronPartitionTimetable("5 * * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%dT%H"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    tags=["kafka", "exactly-once"],
):
    ExactlyOnceLoad(
        "load_clicks",
        sql="SELECT concat('click ', id, ' of {{ partition_key }}') AS value FROM range(60)",
        load_key="{{ partition_key }}",  # the default too, but a run that is triggered without one is refused then
        topics=["clicks"],
        asset_server=CLUSTER,
    )

with DAG(
    "hourly_partitioned_reader",
    schedule=PartitionedAssetTimetable(assets=CLICKS),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    tags=["kafka", "exactly-once"],
):

    @task
    def what_is_new(partition_key=None, triggering_asset_events=None):
        """Where the hour's records are: {partition: [first offset, last offset]}."""
        (event,) = triggering_asset_events[CLICKS]
        return {"hour": partition_key, "offsets": event.extra["offsets"], "records": event.extra["records"]}

    what_is_new()
