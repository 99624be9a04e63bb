"""What prepare's log shows while Spark works, counted by real tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark import pace
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.pace import pause_s
from airflow_kafka_eos.spark.progress import Progress, Tasks, Written, counter, line, tasks_of
from airflow_kafka_eos.spark.write import write

ROWS = 25
PARTS = 4


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("way", ["in this process", "through the data source"])
def test_a_line_counts_what_the_tasks_that_are_done_have_written(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str,
) -> None:
    """Two tasks are through once a line was there without them, two wait until a line has said so."""
    begun, gate = tmp_path / "begun", tmp_path / "go on"
    lines: list[str] = []
    wanted = f"2 of {PARTS} tasks done, 2 running, {2 * ROWS} records, "

    def say(text: str) -> None:
        lines.append(text)
        begun.touch()
        if wanted in text:
            gate.touch()

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context, give_up = TaskContext.get(), time.monotonic() + 120
        assert context is not None
        waits_for = gate if context.partitionId() > 1 else begun
        while not waits_for.exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        yield from batches

    monkeypatch.setattr(pace, "_PACE", ())
    monkeypatch.setattr(pace, "_SELDOM_S", 0.05)
    frame = spark.range(0, PARTS * ROWS, 1, PARTS).selectExpr("'abc' key", "'defg' value")
    if way == "through the data source":  # what the author has arranged is kept so
        frame = spark.range(0, PARTS * ROWS, 1, 1).selectExpr("'abc' key", "'defg' value").repartition(PARTS)
    frame = frame.mapInArrow(held, frame.schema)
    ManifestStore(str(tmp_path)).claim(ref, "me")
    written = counter(spark.sparkContext)
    with Progress(spark.sparkContext, written, str(ref), say):
        write(frame, WriteOptions.parse(options(topic=topic(2), load_claim="me")), written)
    assert gate.exists(), lines
    told = next(text for text in lines if wanted in text)
    assert told.startswith(f"load {ref}: 2 of 4 tasks done, 2 running, 50 records, 350 bytes (stage"), told
    assert "nothing written yet" in lines[0]
    made = ManifestStore(str(tmp_path)).read(ref)
    assert written.value == Written(PARTS, PARTS * ROWS, PARTS * ROWS * 7) == (PARTS, made.records, made.bytes)


def stage(number: int, done: int, total: int, running: int, failed: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        stageId=number, numCompletedTasks=done, numTasks=total, numActiveTasks=running, numFailedTasks=failed
    )


@pytest.mark.parametrize(
    ("tasks", "written", "seconds", "says"),
    [
        ([stage(4, 3, 12, 2)], Written(3, 1_204_000, 240_400_000), 80,
         "3 of 12 tasks done, 2 running, 1,204,000 records, 240 MB (stage 4, 1 min 20 s)"),
        ([stage(2, 5, 8, 0, 1)], Written(), 9.9,
         "5 of 8 tasks done, 1 failed, none running, nothing written yet (stage 2, 9.9 s)"),
        ([stage(3, 1, 4, 1), None, stage(1, 1, 2, 1)], Written(), 3725,
         "2 of 6 tasks done, 2 running, nothing written yet (stages 1, 3, 1 h 2 min)"),
        ([], Written(1, 0, 0), 30, "no Spark stage is at work, 0 records, 0 bytes (30 s)"),
        ([], Written(1, 5, 1_940), 600, "no Spark stage is at work, 5 records, 1.9 kB (10 min 0 s)"),
    ],
)  # fmt: skip
def test_a_line_in_words(tasks: list[SimpleNamespace], written: Written, seconds: float, says: str) -> None:
    assert line(tasks_of(tasks), written, seconds) == says


def test_what_spark_has_forgotten_is_no_stage() -> None:
    assert tasks_of([None]) == Tasks()


def test_the_pace_is_calm() -> None:
    """Some lines in the first minute, and not a log of thousands for a load of hours."""
    moments, at = [], 0.0
    while at < 6 * 3600:
        at += pause_s(at)
        moments.append(at)
    assert sum(moment <= 60 for moment in moments) == 6
    assert len(moments) < 250
