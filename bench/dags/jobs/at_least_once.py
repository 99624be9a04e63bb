"""What people submit today: each Spark task writes its rows with an idempotent producer, and flushes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def main(prefix: str, count: str, topic: str) -> None:
    from pyspark.sql import SparkSession
    from rows import load

    def write(rows):
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": os.environ["BENCH_BOOTSTRAP_SERVERS"], "acks": "all", "enable.idempotence": True}
        )
        for row in rows:
            producer.produce(topic, row.value, row.key)
            producer.poll(0)
        assert producer.flush(60) == 0

    spark = SparkSession.builder.getOrCreate()
    load(spark, prefix, int(count)).foreachPartition(write)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
