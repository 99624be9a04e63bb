"""What an aborted transaction wrote is copied out of a real log, whatever client and compression wrote it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from airflow_kafka_eos.errors import InDoubtError, UndecidableError
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer import copier as module
from airflow_kafka_eos.kafka.producer.copier import SMALL_BYTES, Copier, cost_of, read_batches
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.kafka.records.stored import StoredBatch
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.kafka.open_transactions import LEDGER, an_id, coordinator_of, settings_of, wait_ended

HEADERS = [("h", b"\x00\xff"), ("empty", None)]
Written = tuple[PreparedTransaction, PartitionWrites]


@pytest.fixture(scope="module")
def wire(kafka: LocalKafka) -> Iterator[Wire]:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        yield wire


def write(kafka: LocalKafka, wire: Wire, topic: str, codec: str = "none", begins: int = 1) -> Written:
    """An open transaction of librdkafka's, the last of so many under one producer id and epoch."""
    name = an_id(topic)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": name,
            "compression.type": codec,
            "linger.ms": 200,
        }
    )
    producer.init_transactions(30)
    records = [(b"k%d" % n, None if n % 7 == 6 else b"v%d " % n * 50, HEADERS if n % 2 else []) for n in range(40)]
    now = int(time.time() * 1000)
    for number in range(begins):
        if number:
            producer.commit_transaction(30)
        producer.begin_transaction()
        for n, (key, value, headers) in enumerate(records):
            producer.produce(topic, value, key, partition=0, headers=headers, timestamp=now - n)  # type: ignore[arg-type]
        assert producer.flush(30) == 0
    digest = PartitionDigest()
    for record in records:
        digest.update(*record)
    state = coordinator_of(wire).describe([name])[name].state
    first = (len(records) + 1) * (begins - 1)
    last = first + len(records) - 1
    return (
        PreparedTransaction(name, state),
        PartitionWrites(topic, 0, len(records), 0, first, last, digest.hexdigest(), now),
    )


def copier(wire: Wire, topic: str, left_ms: int = 60_000) -> Copier:
    name = TransactionalId(LoadIdentity("airflow", "orders", topic), LEDGER, 2, role=IdRole.LOAD)
    return Copier(wire, name, timeout_ms=60_000, deadline_ms=int(time.time() * 1000) + left_ms)


def ids_of(wire: Wire, topic: str) -> dict[str, str]:
    return {topic: Partitions(wire).topic_info([topic])[topic].topic_id}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_copy_is_equal_record_by_record(
    kafka: LocalKafka, wire: Wire, topic: Callable[..., str], codec: str
) -> None:
    name = topic()
    lost, writes = write(kafka, wire, name, codec)
    coordinator = coordinator_of(wire)
    coordinator.end(lost, Verdict.ABORT)
    wait_ended(coordinator, lost.transactional_id)
    copying = copier(wire, name)
    new, (copied,) = copying.copy(lost, (writes,), ids_of(wire, name))
    copying.close()
    coordinator.end(new, Verdict.COMMIT)
    wait_ended(coordinator, new.transactional_id)
    assert (copied.records, copied.digest, copied.first_offset) == (writes.records, writes.digest, 41)
    assert read(kafka, name, "read_committed") == read(kafka, name, "read_uncommitted")[:40]


def read(kafka: LocalKafka, topic: str, isolation: str) -> list[tuple[object, ...]]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": f"{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found: list[tuple[object, ...]] = []
    end = time.monotonic() + 30
    while len(found) < (40 if isolation == "read_committed" else 80):
        assert time.monotonic() < end
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append((message.key(), message.value(), message.headers(), message.timestamp()))
    consumer.close()
    return found


def test_what_another_transaction_of_the_same_producer_wrote_is_not_taken_over(
    kafka: LocalKafka, wire: Wire, topic: Callable[..., str]
) -> None:
    """A range that reaches into another transaction is no story of one: offsets are never widened."""
    name = topic()
    lost, w = write(kafka, wire, name, begins=2)
    wide = PartitionWrites(name, 0, w.records, 0, 0, w.last_offset, w.digest, w.oldest_timestamp_ms)
    with pytest.raises(InDoubtError, match=r"offset 40 is of another transaction of its producer"):
        list(read_batches(wire, lost, wide, ids_of(wire, name)[name]))
    assert sum(b.records for b in read_batches(wire, lost, w, ids_of(wire, name)[name])) == w.records
    coordinator_of(wire).end(lost, Verdict.ABORT)


def test_a_batch_that_does_not_hold_its_records_is_in_doubt(
    kafka: LocalKafka, wire: Wire, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker takes such a batch, so it is made of what one sent."""
    name = topic()
    lost, w = write(kafka, wire, name)
    coordinator_of(wire).end(lost, Verdict.ABORT)

    def longer(*arguments: object) -> Iterator[StoredBatch]:
        for batch in read_batches(*arguments):  # type: ignore[arg-type]
            yield batch._replace(data=memoryview(bytes(batch.data) + b"\x00"))

    monkeypatch.setattr(module, "read_batches", longer)
    ids = ids_of(wire, name)
    assert cost_of(wire, lost, (replace(w, bytes=SMALL_BYTES + 1),), ids).seconds is None
    copying = copier(wire, name)
    with pytest.raises(InDoubtError, match="the batch at offset 0 is broken: there is more behind its 40") as caught:
        copying.copy(lost, (w,), ids)
    assert type(caught.value) is InDoubtError and caught.value.transactional_id == lost.transactional_id
    copying.abort()
    copying.close()


def test_past_its_deadline_a_copy_begins_nothing(
    kafka: LocalKafka, wire: Wire, topic: Callable[..., str]
) -> None:
    name = topic()
    lost, w = write(kafka, wire, name)
    coordinator_of(wire).end(lost, Verdict.ABORT)
    copying = copier(wire, name, left_ms=-1)
    with pytest.raises(UndecidableError, match="deadline for opening transactions passed"):
        copying.copy(lost, (w,), ids_of(wire, name))
    copying.abort()
    copying.close()
    own = str(copying._name)
    assert coordinator_of(wire).describe([own]) == {}


def test_what_compaction_took_is_missed(kafka: LocalKafka, wire: Wire, topic: Callable[..., str]) -> None:
    """Aborted records are the first to go from a compacted topic."""
    name = topic(
        config={
            "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "1000",
            "max.compaction.lag.ms": "1000", "delete.retention.ms": "0",
        }
    )  # fmt: skip
    lost, w = write(kafka, wire, name)
    coordinator = coordinator_of(wire)
    coordinator.end(lost, Verdict.ABORT)
    wait_ended(coordinator, lost.transactional_id)
    filler = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    topic_id, end = ids_of(wire, name)[name], time.monotonic() + 60
    while True:  # the active segment is never cleaned: it must roll
        filler.produce(name, b"x", b"filler", partition=0)
        filler.flush(30)
        if sum(b.records for b in read_batches(wire, lost, w, topic_id)) < w.records:
            break
        assert time.monotonic() < end, "nothing was compacted"
        time.sleep(0.5)
    copying = copier(wire, name)
    with pytest.raises(InDoubtError, match=r"holds 0 records with digest"):
        copying.copy(lost, (w,), {name: topic_id})
    copying.abort()
    copying.close()


def test_a_topic_that_was_made_anew_has_nothing_to_copy(
    kafka: LocalKafka, wire: Wire, topic: Callable[..., str]
) -> None:
    name = topic()
    lost, w = write(kafka, wire, name)
    coordinator_of(wire).end(lost, Verdict.ABORT)
    copying = copier(wire, name)
    with pytest.raises(InDoubtError, match="deleted and created again"):
        copying.copy(lost, (w,), {name: "AAAAAAAAAAAAAAAAAAAAAQ"})
    copying.close()
