"""The rows of both loads: ``count`` in two partitions, each value unique to the run."""

from __future__ import annotations


def load(spark, prefix, count):
    return spark.range(count, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS key", f"concat('{prefix} ', id) AS value"
    )
