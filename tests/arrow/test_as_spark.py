"""The same rows, by Spark's tasks and by the worker: the same records in the same places, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import WriterName
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.options import WriteOptions
from tests.arrow.conftest import Preparing
from tests.spark.conftest import spark  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROWS = 500
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


def table(*topics: str) -> pa.Table:
    """Keys, tombstones, headers, two topics, rows that name their partition, and times."""
    begin = datetime.now(UTC).replace(microsecond=123_456) - timedelta(minutes=5)
    made = [
        {
            "key": f"k{n % 17}",
            "value": None if n % 13 == 0 else bytes([n % 256]) * (n % 40),
            "headers": [{"key": "h", "value": b"x"}, {"key": "", "value": None}] if n % 3 == 0 else None,
            "topic": topics[n % 2],
            "partition": n % 3 if n % 5 == 0 else None,
            "timestamp": begin + timedelta(microseconds=n),
        }
        for n in range(ROWS)
    ]
    return pa.Table.from_pylist(made, SCHEMA)


def figures(made: Manifest) -> list[tuple[Any, ...]]:
    return [
        (w.topic, w.partition, w.records, w.bytes, w.digest, w.oldest_timestamp_ms)
        for entry in made.entries
        for w in entry.writes
    ]


def records(kafka: LocalKafka, topic: str, count: int) -> list[Any]:
    """Each record, and where it is, as a reader that sees all gets it; by partition, in order."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "isolation.level": "read_uncommitted"}
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(3)])
    found: list[Any] = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None and message.error() is None, f"{len(found)} of {count} in {topic}"
        found.append(
            (message.partition(), message.offset(), message.key(), message.value(), message.headers(),
             message.timestamp())
        )  # fmt: skip
    consumer.close()
    return sorted(found, key=lambda one: one[:2])


@pytest.mark.parametrize("writer", [WriterName.ARROW, WriterName.CONFLUENT])
@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent"])
def test_the_same_rows_are_the_same_records(
    preparing: Preparing, kafka: LocalKafka, topic: Callable[..., str], spark: SparkSession,  # noqa: F811
    tmp_path: Any, writer: WriterName, partitioner: str,
) -> None:  # fmt: skip
    import pyarrow.parquet as pq

    from airflow_kafka_eos.spark.write import write

    preparing.settings = KafkaSettings.from_mapping(
        {"bootstrap.servers": kafka.bootstrap_servers, "partitioner": partitioner}
    )
    first, second = topic(3), topic(3)
    rows = table(first, second)
    here = preparing(lambda: rows, first, second, writer=writer)
    ours = [records(kafka, name, ROWS // 2) for name in (first, second)]

    third, fourth = topic(3), topic(3)
    path = tmp_path / "rows.parquet"
    pq.write_table(table(third, fourth).set_column(5, "timestamp", rows.column("timestamp")), path)
    frame = spark.read.parquet(str(path)).coalesce(1)
    texts = WriteOptions(
        AttemptRef(preparing.ref.load, preparing.ref.ledger_id, 2), preparing.store.base, (third, fourth),
        60_000, 2**52, kafka=tuple(preparing.settings.texts.items()), writer=writer,
    )  # fmt: skip
    write(frame, texts)
    there = preparing.store.read(texts.attempt)
    renamed = {first: third, second: fourth}
    assert sorted((renamed[name], *rest) for name, *rest in figures(here)) == sorted(figures(there))
    theirs = [records(kafka, name, ROWS // 2) for name in (third, fourth)]
    assert ours == theirs
    preparing.commit(here)
    preparing.commit(there)
