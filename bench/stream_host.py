"""The process in which Spark's streaming queries run: ``python -m bench.stream_host JARS``; see :mod:`.streams`."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_kafka_eos.streams.foreach import exactly_once
from airflow_kafka_eos.streams.source import KafkaEosStreams
from bench.spark_host import reason, session

_LOOK_S = 0.02
_LONGEST_S = 600.0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not answer for us
    spark = session(sys.argv[1])
    spark.dataSource.register(KafkaEosStreams)
    for line in sys.stdin:
        word, *fields = line.rstrip("\n").split("\t")
        given = dict(field.split("=", 1) for field in fields)
        answer = ""
        try:
            if word == "settle":
                spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr]
            else:
                frame = counted(spark, given) if word == "batches" else timed(spark, given)
                answer = "\tprogress=" + json.dumps(run(frame, given))
        except Exception as error:
            traceback.print_exc()
            answer = "\terror=" + reason(error)
        answers.write("@" + answer + "\n")
        answers.flush()
    spark.stop()


def counted(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    """As many rows in each batch as are asked for."""
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=given["rows"], numPartitions=2).load()
    return rows.selectExpr("cast(value AS STRING) AS key", f"concat(cast(value AS STRING), '{given['pad']}') AS value")


def timed(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    """As many rows in each second; a value begins with the milliseconds at which its row was due."""
    rows = spark.readStream.format("rate").options(rowsPerSecond=given["rate"], numPartitions=2).load()
    due = "cast(unix_millis(timestamp) AS STRING)"
    return rows.selectExpr("cast(value AS STRING) AS key", f"concat({due}, '{given['pad']}') AS value")


def run(frame: DataFrame, given: Mapping[str, str]) -> list[dict[str, float]]:
    """Until so many batches with rows are done.

    :returns: of each batch ``rows`` and ``ms``, and ``<step>_ms`` of each step that Spark names.
    """
    query = started(frame, given)
    found: dict[int, dict[str, float]] = {}
    end = time.monotonic() + _LONGEST_S
    try:
        while len(found) < int(given["batches"]):
            if time.monotonic() > end:
                raise TimeoutError(f"{len(found)} of {given['batches']} batches in {_LONGEST_S:g} s")
            time.sleep(_LOOK_S)
            if not query.isActive:
                raise RuntimeError(f"the query has ended: {query.exception()}")
            for one in query.recentProgress:
                ms = one["durationMs"]
                if one["numInputRows"] and "addBatch" in ms:
                    steps = {f"{step}_ms": float(took) for step, took in ms.items() if step != "triggerExecution"}
                    found[one["batchId"]] = {"rows": one["numInputRows"], "ms": float(ms["triggerExecution"])} | steps
    finally:
        query.stop()
    return [found[number] for number in sorted(found)][: int(given["batches"])]


def started(frame: DataFrame, given: Mapping[str, str]) -> StreamingQuery:
    folder, topic = Path(given["folder"]), given["topic"]
    writer = frame.writeStream.option("checkpointLocation", str(folder))
    if given.get("trigger"):
        writer = writer.trigger(processingTime=given["trigger"])
    servers = {"kafka.bootstrap.servers": given["servers"]}
    ours = {"topic": topic, "transaction.timeout.ms": "60000", **servers}
    if given["sink"] == "kafka_eos":
        return writer.queryName(topic).format("kafka_eos").options(**ours).start()
    if given["sink"] == "foreachBatch":
        each = exactly_once(queryName=topic, checkpointLocation=str(folder), **ours)
        return writer.queryName(topic).foreachBatch(each).start()
    return writer.format("kafka").options(topic=topic, **servers).start()


if __name__ == "__main__":
    main()
