"""Loads that lose transactions after their decision, and what an independent reader sees of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.kafka.admin.find_markers import Evidence
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.producer.interface import TopicLimits, WriteTarget
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.transaction import Marker, PreparedTransaction
from tests.kafka.open_transactions import wait_until
from tests.protocol.world import World

#: retention goes by the records' own time
AN_HOUR_AGO = int(time.time() * 1000) - 3_600_000

#: partition, offset, key, value, headers, timestamp type and ms
Message = tuple[int, int, bytes | None, bytes | None, object, object]


def rows(part: int, count: int, partitions: int = 2) -> pa.RecordBatch:
    """Rows with nulls, headers and timestamps of their own."""
    numbers = range(count)
    headers = [
        None if n % 3 == 0 else [{"key": f"h{n}", "value": b"\x00%d" % n}, {"key": "ä", "value": None}] for n in numbers
    ]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None if n % 4 == 0 else b"k%d" % n for n in numbers], pa.binary()),
            "value": pa.array([None if n % 5 == 4 else b"%d-%d " % (part, n) * n for n in numbers], pa.binary()),
            "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            "partition": pa.array([n % partitions for n in numbers], pa.int32()),
            "timestamp": pa.array([AN_HOUR_AGO + part * 1000 + n * 7 for n in numbers], pa.timestamp("ms")),
        }
    )


def write_rows(world: World, name: TransactionalId, batch: pa.RecordBatch, writer: str = "arrow") -> ManifestEntry:
    info = world.session.partitions.topic_info([world.topic])[world.topic]
    limits = {world.topic: TopicLimits(info.partitions, 1_000_000)}
    deadline_ms = int(time.time() * 1000) + 60_000
    made = make_writer(
        writer, world.settings, WriteTarget(name, limits, world.topic, world.timeout_ms, deadline_ms)
    )
    try:
        made.open()
        made.write(batch)
        return ManifestEntry(name.spark_partition or 0, *made.prepare())
    finally:
        made.close()


def decided(world: World, count: int, each: int = 40, writer: str = "arrow") -> Manifest:
    """A load of so many transactions, decided to be committed, none of them ended yet."""
    ref = reference(world.session, world.open_attempt())
    manifest = world.manifest(
        ref,
        [
            write_rows(world, TransactionalId(ref.load, ref.ledger_id, ref.attempt, n, n), rows(n, each), writer)
            for n in range(count)
        ],
    )
    record_prepared(world.session, manifest)
    # a busy machine may need a while for the ledger; the shortest timeouts leave no room for it
    world.decide(manifest, margin_s=20 if world.timeout_ms > 30_000 else 1)
    return manifest


def lose(world: World, transaction: PreparedTransaction) -> None:
    """As the broker's timeout or a hand does it; returns when the markers are there."""
    world.session.coordinator.end(transaction, Verdict.ABORT)
    wait_until(lambda: transaction.transactional_id not in world.open_ids(), "the end of the transaction")


def mixed_up(session: Session, transaction: PreparedTransaction) -> Session:
    """Where a transaction's partitions do not agree, as when somebody wrote markers past the coordinator."""

    class Mixed(Partitions):
        def markers_of(self, *arguments: object) -> Evidence:
            found, error, _ = session.partitions.markers_of(*arguments)  # type: ignore[arg-type]
            for number, (_, by) in enumerate(sorted(found.items())):
                for one in by:
                    if one.producer_id == transaction.state.producer_id:
                        by[one] = [Marker.COMMIT, Marker.ABORT][number]
            return Evidence(found, error)

    return replace(session, partitions=Mixed(session.partitions.wire))


def read(world: World, isolation: str) -> list[Message]:
    """All that such a reader sees, partition by partition in the log's order."""
    consumer = Consumer(
        {
            "bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"],
            "group.id": str(uuid.uuid4()),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        count = world.session.partitions.topic_info([world.topic])[world.topic].partitions
        consumer.assign([ConfluentPartition(world.topic, p, 0) for p in range(count)])
        found: list[Message] = []
        ended = set[int]()
        while len(ended) < count:
            message = consumer.poll(20)
            assert message is not None, "no end of partition within 20 s"
            partition, offset, error = message.partition(), message.offset(), message.error()
            assert partition is not None and offset is not None
            if error is None:
                found.append(
                    (partition, offset, message.key(), message.value(), message.headers(),
                     message.timestamp())
                )  # fmt: skip
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
        return sorted(found, key=lambda m: m[:2])
    finally:
        consumer.close()


def contents(messages: Sequence[Message], partition: int) -> list[tuple[object, ...]]:
    """Without their offsets."""
    return [m[2:] for m in messages if m[0] == partition]


def of(messages: Sequence[Message], manifest: Manifest, spark_partition: int) -> list[Message]:
    """The messages that one transaction wrote, by their recorded offsets."""
    ranges = {w.partition: (w.first_offset, w.last_offset) for w in manifest.entries[spark_partition].writes}
    return [m for m in messages if m[0] in ranges and ranges[m[0]][0] <= m[1] <= ranges[m[0]][1]]


def delete_records(world: World, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"]})
    for done in admin.delete_records([ConfluentPartition(world.topic, partition, before)]).values():
        done.result(30)


def state(world: World) -> LoadState:
    row = world.session.ledger.load(world.load)
    assert row is not None
    return row.state
