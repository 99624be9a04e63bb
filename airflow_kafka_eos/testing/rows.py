"""The rows of a conformance test: numbered, and held back half-way until the test lets them go.

``airflow_kafka_eos.testing.rows:spark`` is a job for Spark, ``airflow_kafka_eos.testing.rows:arrow`` one for
``engine="arrow"``; a prepare that makes its rows by itself can use :func:`numbered`, or does the same in its language.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_S = 0.05
_SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])


def key(number: int) -> str:
    """Of the row with this number, counted from 0."""
    return f"k{number}"


def value(number: int) -> str:
    """Of the row with this number, counted from 0."""
    return f"row {number}"


def numbered(first: int, last: int, folder: str, patience_s: float = 300) -> Iterator[pa.RecordBatch]:
    """Rows ``first`` to ``last - 1`` in two batches, with what :class:`~.assignment.Gate` says between them.

    :param folder: of the gate.
    :raises RuntimeError: the gate was told to fail, or nobody opened it within ``patience_s`` seconds.
    """
    middle = (first + last) // 2
    yield _batch(first, middle)
    gate = Path(folder)
    (gate / f"reached-{first}").touch()
    until = time.monotonic() + patience_s
    while not (gate / "open").exists():
        if (gate / "fail").exists():
            raise RuntimeError("the source fails, as the conformance test wants it")
        if time.monotonic() > until:
            raise RuntimeError(f"nobody opened the gate {folder} within {patience_s:g} s")
        time.sleep(_POLL_S)
    yield _batch(middle, last)


def _batch(first: int, last: int) -> pa.RecordBatch:
    numbers = range(first, last)
    return pa.record_batch([[key(n) for n in numbers], [value(n) for n in numbers]], schema=_SCHEMA)


def arrow(records: int, folder: str, tasks: int) -> pa.RecordBatchReader:
    """A job of ``engine="arrow"``: one stream, whatever ``tasks`` says."""
    return pa.RecordBatchReader.from_batches(_SCHEMA, numbered(0, records, folder))


def spark(spark: SparkSession, records: int, folder: str, tasks: int) -> DataFrame:
    """A job of Spark: as many Spark partitions as ``tasks``."""
    size = -(-records // tasks)

    def rows(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for first in batch.column(0).to_pylist():
                yield from numbered(first, min(first + size, records), folder)

    firsts = spark.range(0, records, size, numPartitions=tasks)
    return firsts.mapInArrow(rows, "key string, value string")
