"""The job of hourly_stream, in a file of its own: Spark's Python imports it, and needs nothing that a DAG needs."""

from __future__ import annotations

import os


def load(spark, folder):
    """A streaming DataFrame with the columns of Spark's own Kafka sink."""
    os.makedirs(folder, exist_ok=True)  # Spark wants it to be there
    parcels = spark.readStream.schema("id STRING, state STRING").option("maxFilesPerTrigger", 1).json(folder)
    return parcels.selectExpr("id AS key", "to_json(struct(*)) AS value")
