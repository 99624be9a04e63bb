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
    from pyspark.sql import SparkSession

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


def arrow(
    records: int, folder: str, tasks: int, since: int | None = None, until: int | None = None
) -> Any:
    """A job of ``engine="arrow"``: one stream, whatever ``tasks`` says.

    :param since: with a range, its first row; None: there is no range.
    :param until: the row behind its last one; None: this chooses it, and returns it beside the stream.
    """
    end = records if until is None else until
    reader = pa.RecordBatchReader.from_batches(_SCHEMA, numbered(since or 0, end, folder))
    return (reader, end) if since is not None and until is None else reader


def spark(
    spark: SparkSession, records: int, folder: str, tasks: int, since: int | None = None, until: int | None = None
) -> Any:
    """A job of Spark: at most as many Spark partitions as ``tasks``. Its range is as :func:`arrow` has it."""
    begin, end = since or 0, records if until is None else until
    size = -(-(end - begin) // tasks)

    def rows(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for first in batch.column(0).to_pylist():
                yield from numbered(first, min(first + size, end), folder)

    firsts = spark.range(begin, end, size, numPartitions=tasks)
    frame = firsts.mapInArrow(rows, "key string, value string")
    return (frame, end) if since is not None and until is None else frame
