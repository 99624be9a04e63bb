"""Spark's Python workers look through what was imported once, and in no other process is anything left out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.spark.datasource import KafkaEosWriter
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.spark.quick_collect import collect_less

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_process_that_is_not_sparks_is_left_alone() -> None:
    before = gc.get_freeze_count()
    collect_less()
    assert gc.get_freeze_count() == before


def test_behind_a_task_its_worker_leaves_out_what_it_has_once(spark: SparkSession) -> None:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        # the worker may have done so for an earlier test; then nothing is added either
        collect_less()
        first = gc.get_freeze_count()
        own: list[list[int]] = [[] for _ in range(1000)]
        collect_less()
        yield pa.RecordBatch.from_pydict({"first": [first], "second": [gc.get_freeze_count()], "own": [len(own)]})

    (found,) = spark.range(0, 1, 1, 1).mapInArrow(task, "first long, second long, own long").collect()
    assert found.first > 10_000 and found.second <= found.first


def test_what_is_left_out_is_freed_all_the_same(spark: SparkSession) -> None:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import weakref

        from airflow_kafka_eos.spark import quick_collect

        for _ in batches:
            pass

        class Kept:
            pass

        kept = Kept()
        looked = weakref.ref(kept)
        quick_collect._is_done = False
        collect_less()
        del kept
        yield pa.RecordBatch.from_pydict({"freed": [looked() is None]})

    assert [row.freed for row in spark.range(0, 1, 1, 1).mapInArrow(task, "freed boolean").collect()] == [True]


@pytest.mark.broker
def test_a_loads_task_does_so_behind_its_transaction(
    spark: SparkSession, options: Callable[..., dict[str, str]], settings: KafkaSettings, topic: Callable[..., str],
) -> None:  # fmt: skip
    given = WriteOptions.parse(options(topic=topic(1)))
    writer = KafkaEosWriter(given, settings, check_cluster(settings, given))

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_kafka_eos.spark import quick_collect

        gc.unfreeze()
        quick_collect._is_done = False
        report: Any = writer.write(batches)
        wrote, left_out = report.entry.transaction is not None, gc.get_freeze_count() > 10_000
        yield pa.RecordBatch.from_pydict({"wrote": [wrote], "left_out": [left_out]})

    frame = spark.range(0, 2, 1, 2).selectExpr("cast(id AS STRING) AS value").where("value = '1'")
    found = {(row.wrote, row.left_out) for row in frame.mapInArrow(task, "wrote boolean, left_out boolean").collect()}
    assert found == {(True, True), (False, False)}
