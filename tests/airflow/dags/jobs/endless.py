"""Rows that come slowly, for ``seconds``: whoever loads them is on it for that long."""

from __future__ import annotations


def load(spark, seconds):
    def rows(_):
        import time

        import pyarrow as pa

        batch = pa.RecordBatch.from_pydict({"value": ["v" * 1000] * 2_000})
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            yield batch
            time.sleep(0.1)

    return spark.range(1, numPartitions=1).mapInArrow(rows, "value string")
