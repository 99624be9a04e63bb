"""The rows of :mod:`airflow_kafka_eos.testing.rows`, each so wide that the writer gets the first ones of a held source.

Spark hands on nothing from one Python function to the next before it has collected 64 KB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_kafka_eos.testing.rows import numbered

WIDTH = 30_000


def spark(spark: Any, records: int, folder: str, tasks: int) -> Any:
    """A job of Spark: as many Spark partitions as ``tasks``."""
    size = -(-records // tasks)

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for first in batch.column(0).to_pylist():
                for part in numbered(first, min(first + size, records), folder):
                    keys = [key + "x" * WIDTH for key in part.column(0).to_pylist()]
                    made = pa.RecordBatch.from_arrays([pa.array(keys), part.column(1)], ["key", "value"])
                    for row in range(made.num_rows):  # the end of a batch may wait in Python's own buffer, too
                        yield made.slice(row, 1)

    return spark.range(0, records, size, numPartitions=tasks).mapInArrow(rows, "key string, value string")
