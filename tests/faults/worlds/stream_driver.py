"""One life of a Spark driver in a stream world: queries on their checkpoints, until told to stop, or something dies.

python -m tests.faults.worlds.stream_driver '{"folder": …, "queries": […], …}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.faults.worlds.stream_steps import FOLDER, LIFE


def main(given: dict[str, Any]) -> int:
    Path(os.environ[FOLDER], f"pid-{os.environ[LIFE]}").write_text(str(os.getpid()))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{given['cores']},2]")
    for key, value in given["spark"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    from airflow_kafka_eos.streams.source import KafkaEosStreams

    spark.dataSource.register(KafkaEosStreams)
    stop = Path(given["stop"])
    while True:
        queries = [_started(spark, given, query) for query in given["queries"]]
        print("STARTED", flush=True)
        while all(one.isActive for one in queries) and not stop.exists():
            time.sleep(0.05)
        if stop.exists():
            for one in queries:
                one.stop()
            return 0
        if given["available_now"]:
            for one in queries:
                one.awaitTermination()  # raises what a batch has failed with
            time.sleep(0.1)
            continue
        for one in queries:
            if not one.isActive:
                print("FAILED", one.name, str(one.exception()), flush=True)
        return 1


def _started(spark: Any, given: dict[str, Any], query: dict[str, Any]) -> Any:
    rows = _rows(spark, given)
    if given["tasks"]:
        rows = rows.repartition(given["tasks"], "value")
    options = {
        "kafka.bootstrap.servers": given["bootstrap"],
        "topic": query["topic"],
        "load.namespace": given["namespace"],
        "checkpointLocation": query["checkpoint"],
    } | given["options"]
    writer = rows.writeStream.queryName(query["name"])
    if given["available_now"]:
        writer = writer.trigger(availableNow=True)
    if query["each"]:
        from airflow_kafka_eos.streams.foreach import exactly_once

        write = exactly_once(queryName=query["name"], **options)

        def each(frame: Any, number: int) -> None:
            write(frame, number)

        return writer.foreachBatch(each).option("checkpointLocation", query["checkpoint"]).start()
    return writer.format("kafka_eos").options(**options).start()


def _rows(spark: Any, given: dict[str, Any]) -> Any:
    source = given["source"]
    if "topic" not in source:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", source["files"]).load(source["folder"])
        return lines.selectExpr("value AS key", "value")
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("subscribe", source["topic"])
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", source["records"])
        .load()
        .selectExpr("key", "CAST(value AS STRING) AS value")
    )


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
