"""Compacted topics whose cleaner comes at once, and what it has left of a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from confluent_kafka import Producer
from kafka.protocol.consumer.fetch import FetchRequest

from airflow_kafka_eos.kafka.admin.find_markers import TOPIC_ID_VERSION, uuid_of
from airflow_kafka_eos.kafka.records.stored import StoredBatch, batches
from airflow_kafka_eos.manifest import ManifestEntry, PartitionWrites
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TopicPartition
from tests.conftest import NO_RETENTION_ROUNDS
from tests.protocol.world import World

#: The cleaner looks ten times a second, and partitions forget producers a second after their end.
EAGER = {
    "log.cleaner.backoff.ms": "100",
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "200",
}
TOPIC = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "segment.ms": "300",
    "max.compaction.lag.ms": "300",
    "delete.retention.ms": "0",
}
#: the key of what is only written so that segments are closed
FILLER = b"filler"
_CLEANED_S = 90


@contextmanager
def eager_kafka(version: str) -> Iterator[LocalKafka]:
    with LocalKafka(version=version, broker_settings=NO_RETENTION_ROUNDS | EAGER) as running:
        yield running


def log_of(world: World, partition: int = 0) -> list[StoredBatch]:
    """All batches of a partition, as they stand in its log."""
    found: list[StoredBatch] = []
    tp = TopicPartition(world.topic, partition)
    end = world.session.partitions.end_offsets([tp])[tp]
    topic_id = world.session.partitions.topic_info([world.topic])[world.topic].topic_id
    topic = FetchRequest.FetchTopic
    offset = 0
    while offset < end:
        where = topic.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=8 << 20,
            isolation_level=0,
            topics=[topic(topic_id=uuid_of(topic_id), partitions=[where])],
            min_version=TOPIC_ID_VERSION,
        )
        (row,) = [p for t in world.session.partitions.wire.send_to_leader(tp, request).responses for p in t.partitions]
        read = [b for b in batches(row.records or b"") if b.last_offset >= offset]
        found += read
        offset = read[-1].last_offset + 1 if read else end
    return found


def left_of(world: World, state: PreparedTxnState, partition: int = 0) -> list[str]:
    """What is left of a producer there: ``data``, ``empty`` and ``marker``, in the log's order."""
    return [
        "marker" if b.is_control else "data" if b.records else "empty"
        for b in log_of(world, partition)
        if b.producer_id == state.producer_id
    ]


def clean_until(world: World, done: Callable[[], bool], what: str) -> None:
    """Write on, for only closed segments are cleaned."""
    filler = Producer({"bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"]})
    partitions = world.session.partitions.topic_info([world.topic])[world.topic].partitions
    give_up = time.monotonic() + _CLEANED_S
    while not done():
        assert time.monotonic() < give_up, f"{what} did not come within {_CLEANED_S} s"
        for partition in range(partitions):
            filler.produce(world.topic, FILLER, FILLER, partition=partition)
        assert filler.flush(30) == 0
        time.sleep(0.3)


def write_again(world: World, *keys: bytes, partition: int = 0) -> None:
    """As a later load, or anybody, does."""
    producer = Producer({"bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"]})
    for key in keys:
        producer.produce(world.topic, b"newer", key, partition=partition)
    assert producer.flush(30) == 0


@dataclass
class Writer:
    """librdkafka's producer in a Spark task's place: a transaction version 1 client, which keeps its epoch.

    ``writes``: of its first transaction, by partition.
    """

    world: World
    name: str
    producer: Producer
    state: PreparedTxnState
    writes: dict[int, PartitionWrites] = field(default_factory=dict)

    def write(self, key: bytes, partition: int = 0) -> int:
        """One batch of one record; its offset."""
        found: list[int] = []
        self.producer.produce(
            self.world.topic, b"ours", key, partition=partition,
            on_delivery=lambda error, m: found.append(-1 if error or (at := m.offset()) is None else at),
        )  # fmt: skip
        assert self.producer.flush(30) == 0
        (offset,) = found
        assert offset >= 0
        return offset


def decided_by_hand(world: World, *keys: bytes, places: Sequence[int] = (0,)) -> Writer:
    """A load of one transaction, decided to be committed, still open: a batch for each key in each partition."""
    world = replace(world, timeout_ms=600_000)
    ref = reference(world.session, world.open_attempt())
    name = str(TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 1))
    producer = Producer(
        {
            "bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"],
            "transactional.id": name,
            "transaction.timeout.ms": world.timeout_ms,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    writer = Writer(world, name, producer, PreparedTxnState.EMPTY)
    for place in places:
        offsets = [writer.write(key, place) for key in keys]
        now = int(time.time() * 1000)
        writer.writes[place] = PartitionWrites(
            world.topic, place, len(keys), 10, offsets[0], offsets[-1], "0" * 32, now
        )
    writer.state = world.session.coordinator.describe([name])[name].state
    transaction = PreparedTransaction(name, writer.state)
    manifest = world.manifest(ref, [ManifestEntry(0, transaction, tuple(writer.writes.values()))])
    record_prepared(world.session, manifest)
    world.decide(manifest)
    return writer
