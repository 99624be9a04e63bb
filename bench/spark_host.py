"""The process in which Spark's contestants run: ``python -m bench.spark_host JARS`` with what :mod:`bench.host` sends.

One session, local[2]. The DataFrame is read from Parquet files that stand in the page cache: the same rows in a fresh
session as in a warm one, at the cost that the floor shows. ``JARS`` is the folder with Spark's own Kafka sink.
"""

from __future__ import annotations

import os
import re
import sys
import time
import traceback

from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_eos.spark.errortext import own_error
from airflow_kafka_eos.spark.write import ARROW_BATCHES
from bench.spark_writers import WRITERS


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not answer for us
    spark = session(sys.argv[1])
    frame: DataFrame | None = None
    for line in sys.stdin:
        word, *fields = line.rstrip("\n").split("\t")
        given = dict(field.split("=", 1) for field in fields)
        answer = ""
        try:
            if word == "load":
                frame = read(spark, given["files"].split(","))
            elif word == "settle":
                spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr]
            elif word == "run" and frame is not None:
                begun = time.perf_counter()
                WRITERS[given["writer"]](frame, given)
                answer = f"\tseconds={time.perf_counter() - begun}"
            else:
                raise ValueError(f"unknown command {word}")
        except Exception as error:
            traceback.print_exc()
            answer = "\terror=" + " ".join((own_error(error) or reason(error)).split())
        answers.write("@" + answer + "\n")
        answers.flush()
    spark.stop()


def session(jars: str) -> SparkSession:
    """As the packaged application has it, on two cores, without a UI. One file is one task.

    :param jars: a folder; what is in it comes behind Spark's own jars.
    """
    builder = SparkSession.builder.master("local[2]")
    for key, value in ARROW_BATCHES.items():
        builder = builder.config(key, value)
    return (
        builder
        .config("spark.driver.memory", "3g")
        # a heap that shrinks with each System.gc() and grows again took a fifth of the floor's time
        .config("spark.driver.extraJavaOptions", "-Xms3g")
        .config("spark.driver.extraClassPath", f"{jars}/*")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        # scope load asks for these; the others do not mind
        .config("spark.stage.maxConsecutiveAttempts", "1")
        .config("spark.stage.ignoreDecommissionFetchFailure", "false")
        .config("spark.sql.files.minPartitionNum", "1")
        .getOrCreate()
    )


def reason(error: Exception) -> str:
    """The line that says what went wrong in a task, of the stacks that Spark makes of it."""
    lines = [line for line in str(error).splitlines() if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return f"{type(error).__name__}: {lines[-1] if lines else str(error)[:500]}"


def read(spark: SparkSession, files: list[str]) -> DataFrame:
    """One task for each file: none is cut, no two go together."""
    spark.conf.set("spark.sql.files.maxPartitionBytes", max(os.path.getsize(file) for file in files))
    frame = spark.read.parquet(*files)
    tasks = frame.rdd.getNumPartitions()
    if tasks != len(files):
        raise ValueError(f"{len(files)} files became {tasks} tasks")
    return frame


if __name__ == "__main__":
    main()
