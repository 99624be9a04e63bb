"""The process in which Spark's streaming queries run: ``python -m bench.stream_host JARS``; see :mod:`.streams`."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from airflow_kafka_eos.streams.foreach import exactly_once
from airflow_kafka_eos.streams.source import KafkaEosStreams
from bench.empty_sink import EmptySink
from bench.spark_host import reason, session
from bench.stream_report import FLOOR

#: shorter than any batch
_LOOK_S = 0.05
_LONGEST_S = 600.0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not answer for us
    spark = session(sys.argv[1])
    spark.dataSource.register(KafkaEosStreams)
    spark.dataSource.register(EmptySink)
    steady: Running | None = None
    for line in sys.stdin:
        word, *fields = line.rstrip("\n").split("\t")
        given = dict(field.split("=", 1) for field in fields)
        answer = ""
        try:
            if word == "settle":
                spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr]
            elif word == "begin":
                frame = copied(spark, given) if given["source"] == "kafka" else timed(spark, given)
                steady = Running(frame, given)
                steady.until(int(given["batches"]))
            elif word == "on" and steady is not None:
                steady.on(float(given["seconds"]))
            elif word == "end" and steady is not None:
                answer = "\tprogress=" + json.dumps(steady.stop())
            elif word in ("batches", "ages"):
                frame = counted(spark, given) if word == "batches" else timed(spark, given)
                answer = "\tprogress=" + json.dumps(run(frame, given))
            else:
                raise ValueError(f"unknown command {word}")
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


def copied(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    """Out of a topic that is there already: what one second has, in each batch."""
    options = {
        "kafka.bootstrap.servers": given["servers"], "kafka.isolation.level": "read_committed",
        "subscribe": given["from"], "startingOffsets": "earliest", "maxOffsetsPerTrigger": given["rate"],
    }  # fmt: skip
    return spark.readStream.format("kafka").options(**options).load().select("key", "value")


def run(frame: DataFrame, given: Mapping[str, str]) -> list[dict[str, float]]:
    """Until so many batches with rows are done; see :meth:`Running.stop`."""
    running = Running(frame, given)
    try:
        running.until(int(given["batches"]))
    finally:
        found = running.stop()
    return found[: int(given["batches"])]


class Running:
    """A query that goes on until it is stopped."""

    def __init__(self, frame: DataFrame, given: Mapping[str, str]) -> None:
        self.query = started(frame, given)
        self._found: dict[int, dict[str, float]] = {}

    def until(self, count: int) -> None:
        """
        :raises TimeoutError: so many batches with rows take too long.
        :raises RuntimeError: the query has ended.
        """
        end = time.monotonic() + _LONGEST_S
        while len(self._found) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self._found)} of {count} batches in {_LONGEST_S:g} s")
            self._look()

    def on(self, seconds: float) -> None:
        """So many seconds, and until the end of the batch that is under way then."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
        self.until(len(self._found) + 1)

    def stop(self) -> list[dict[str, float]]:
        """
        :returns: of each batch with rows ``rows`` and ``ms``, and ``<step>_ms`` of each step that Spark names.
        """
        self.query.stop()
        for one in self.query.recentProgress:
            self._note(one)
        return [self._found[number] for number in sorted(self._found)]

    def _look(self) -> None:
        time.sleep(_LOOK_S)
        if not self.query.isActive:
            raise RuntimeError(f"the query has ended: {self.query.exception()}")
        # all of the recent ones, at each look, would take a core's third from those that are measured
        if (last := self.query.lastProgress) is not None:
            self._note(last)

    def _note(self, one: Mapping[str, Any]) -> None:
        ms = one["durationMs"]
        if one["numInputRows"] and "addBatch" in ms:
            steps = {f"{step}_ms": float(took) for step, took in ms.items() if step != "triggerExecution"}
            self._found[one["batchId"]] = {"rows": one["numInputRows"], "ms": float(ms["triggerExecution"])} | steps


def started(frame: DataFrame, given: Mapping[str, str]) -> StreamingQuery:
    folder, topic = Path(given["folder"]), given["topic"]
    writer = frame.writeStream.option("checkpointLocation", str(folder))
    if given.get("trigger"):
        writer = writer.trigger(processingTime=given["trigger"])
    servers = {"kafka.bootstrap.servers": given["servers"]}
    ours = {"topic": topic, "transaction.timeout.ms": "60000", **servers}
    if given["sink"] == FLOOR:
        return writer.format("empty").start()
    if given["sink"] == "kafka_eos":
        return writer.queryName(topic).format("kafka_eos").options(**ours).start()
    if given["sink"] == "foreachBatch":
        each = exactly_once(queryName=topic, checkpointLocation=str(folder), **ours)
        return writer.queryName(topic).foreachBatch(each).start()
    return writer.format("kafka").options(topic=topic, **servers).start()


if __name__ == "__main__":
    main()
