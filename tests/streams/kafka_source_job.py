"""Whether each of some streaming DataFrames reads what was aborted: ``JARS``; prints JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_eos.streams.application import reads_aborted


def main(jars: str) -> None:
    spark = SparkSession.builder.master("local[1]").config("spark.jars", jars).getOrCreate()

    def kafka(**options: str) -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "localhost:9").options(**options)
        return reader.option("subscribe", "clicks").load().selectExpr("value")

    told = kafka(**{"kafka.isolation.level": "read_committed"})
    numbers = spark.readStream.format("rate").load().selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value")
    static = spark.createDataFrame([(b"a",)], "value binary")
    frames = [told, told.union(numbers), numbers, kafka(), told.union(kafka()), static.join(kafka(), "value")]
    print(json.dumps([reads_aborted(frame) for frame in frames]))


if __name__ == "__main__":
    main(*sys.argv[1:])
