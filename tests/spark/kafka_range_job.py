"""A Spark with its own Kafka source, which reads one range and prints its values as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from airflow_kafka_eos.spark.kafka_range import options_of


def main(servers: str, jars: str, since: str, until: str) -> None:
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    options = options_of(json.loads(since), json.loads(until))
    session = spark.getOrCreate()
    frame = session.read.format("kafka").options(**{"kafka.bootstrap.servers": servers}, **options).load()
    print(json.dumps(sorted(bytes(row.value).decode() for row in frame.select("value").collect())))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
