"""A load by a Spark Connect server that runs already: no JVM in Airflow (docs/spark-connect.md).

Needs the connections `kafka_default` and `spark_connect` (type spark_connect), the topic `temperatures`, and this
package on the server's executors.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_kafka_eos import exactly_once_load

DAY = "{{ data_interval_start | ds }}"


@exactly_once_load(topics=["temperatures"], load_key=DAY, spark_conn_id="spark_connect")
def load_temperatures(spark, day):
    """What spark.read has, or spark.sql, or tables; it runs at the server."""
    return spark.range(24).selectExpr("concat('sensor ', id % 3) key", f"concat('{day} ', id, ':00 21.5') value")


with DAG(
    "by_spark_connect",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={"retries": 2},
    tags=["kafka", "exactly-once"],
):
    load_temperatures(day=DAY)
