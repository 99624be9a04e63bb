"""A driver of its own process: one query of rows that count from 0, until so many batches are done.

python -m tests.streams.query '{"checkpoint": …, "topic": …, "bootstrap": …, "batches": 3, …}'
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

ROWS = 500


def main(given: dict[str, Any]) -> int:
    from pyspark.sql import SparkSession

    from tests.streams.killing import KillingStreams

    builder = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    for key, value in given.get("spark", {}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(KillingStreams)
    rows = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=given.get("rows", ROWS), numPartitions=2)
        .load()
        .selectExpr("cast(value as string) key", "concat('v', value) value")
    )
    writer = (
        rows.writeStream.format("kafka_eos")
        .queryName(given.get("name", "numbers"))
        .option("checkpointLocation", given["checkpoint"])
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("topic", given["topic"])
        .options(**given.get("options", {}))
    )
    query = writer.start()
    print("started", query.id, flush=True)
    done, began = -1, time.monotonic()
    while done + 1 < given["batches"] and query.isActive and time.monotonic() - began < 800:
        time.sleep(0.1)
        for progress in query.recentProgress:
            if progress["batchId"] > done:
                done = progress["batchId"]
                print("done", done, json.dumps(progress["durationMs"]), flush=True)
    error = query.exception()
    query.stop()
    if error is not None:
        print("failed", str(error), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
