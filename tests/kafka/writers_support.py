"""Writers for tests, and topics read back by a consumer that shares nothing with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Assignment
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.interface import Tally, TopicLimits, TransactionWriter, WriteTarget
from airflow_kafka_eos.kafka.producer.writers import describe_once, make_writer
from airflow_kafka_eos.kafka.records.digest import record_bytes
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.naming import AnyId, TransactionalId
from airflow_kafka_eos.transaction import PreparedTransaction, TopicPartition

LEDGER = "00000000aa"
KINDS = ("arrow", "confluent")
DEFAULT_LIMIT = 1_048_588

#: ``new_writer(topics, **changes)`` of conftest.py: a writer that is not open yet, and its transactional id
NewWriter = Callable[..., tuple[TransactionWriter, TransactionalId]]


def settings_of(bootstrap_servers: str, **changes: Any) -> KafkaSettings:
    """Dots of names are written as underscores."""
    given = {name.replace("_", "."): value for name, value in changes.items()}
    return KafkaSettings.from_mapping({"bootstrap.servers": bootstrap_servers, **given})


def an_id(key: str) -> TransactionalId:
    return TransactionalId(LoadIdentity("tests", "writers", key), LEDGER, 1, 0, 0)


def target_of(transactional_id: TransactionalId, topics: dict[str, Any], **changes: Any) -> WriteTarget:
    """Topics by their number of partitions, or limits; the first one is the default."""
    return WriteTarget(
        **{
            "transactional_id": transactional_id,
            "topics": {t: TopicLimits(n, DEFAULT_LIMIT) if isinstance(n, int) else n for t, n in topics.items()},
            "default_topic": next(iter(topics)),
            "transaction_timeout_ms": 120_000,
            "deadline_ms": int(time.time() * 1000) + 60_000,
            **changes,
        }
    )


@contextmanager
def opened(kind: str, settings: KafkaSettings, target: WriteTarget) -> Iterator[TransactionWriter]:
    """An open writer; what is still open behind the block is aborted."""
    writer = make_writer(kind, settings, target)
    try:
        writer.open()
        yield writer
    finally:
        writer.abort()
        writer.close()


def end(settings: KafkaSettings, prepared: PreparedTransaction, verdict: Verdict = Verdict.COMMIT) -> None:
    with Wire(settings) as wire:
        Coordinator(wire, namespace="tests", ledger_id=LEDGER).end(prepared, verdict)


def is_open(settings: KafkaSettings, transactional_id: AnyId) -> bool:
    """Asked until the markers are written: the coordinator answers an EndTxn before."""
    until = time.monotonic() + 20
    while True:
        seen = describe_once(settings, transactional_id)
        if seen is None or not seen.is_open:
            return False
        if time.monotonic() > until:
            return True
        time.sleep(0.05)


def take_over(bootstrap_servers: str, transactional_id: TransactionalId) -> Producer:
    """Another application initialises the same transactional id."""
    zombie = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": str(transactional_id)})
    zombie.init_transactions(30)
    return zombie


def add_partitions(bootstrap_servers: str, topic: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([topic])[topic].result(30)


@contextmanager
def granted(
    bootstrap_servers: str, user: str, *rights: tuple[ResourceType, str, AclOperation]
) -> Iterator[None]:
    """ACLs for the length of a block."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    pattern, who, allow = ResourcePatternType.LITERAL, (user, "*"), AclPermissionType.ALLOW
    acls = [AclBinding(kind, name, pattern, *who, operation, allow) for kind, name, operation in rights]
    for done in admin.create_acls(acls).values() if acls else ():
        done.result(30)
    yield
    filters = [AclBindingFilter(kind, name, pattern, *who, operation, allow) for kind, name, operation in rights]
    for done in admin.delete_acls(filters).values() if acls else ():
        done.result(30)


class Record(NamedTuple):
    """As a consumer sees it; timestamp in milliseconds."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def consume(
    bootstrap_servers: str,
    topic: str,
    partitions: int,
    count: int,
    isolation: str = "read_uncommitted",
    starts: Mapping[int, int] | None = None,
) -> list[Record]:
    """All there is, in the order of each partition. At least ``count`` records, or what came within 60 s.

    :param starts: the first offset by partition; 0 where it says nothing.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "x",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 10_000_000,
        }
    )
    consumer.assign([Assignment(topic, p, (starts or {}).get(p, 0)) for p in range(partitions)])
    records: list[Record] = []
    at_end: set[int] = set()
    until = time.monotonic() + 60
    # up to the end of every partition: what is there twice must be seen
    while (len(records) < count or len(at_end) < partitions) and time.monotonic() < until:
        for m in consumer.consume(10_000, 0.1):
            if (error := m.error()) is None:
                records.append(_record(m))
                at_end.discard(m.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                partition = m.partition()
                assert partition is not None
                at_end.add(partition)
    consumer.close()
    return records


def _record(m: Any) -> Record:
    return Record(m.partition(), m.offset(), m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1])


def writes_of(topic: str, records: Iterable[Record]) -> tuple[PartitionWrites, ...]:
    """What a writer of these records would have to report."""
    tally = Tally()
    for r in records:
        found = tally.of(TopicPartition(topic, r.partition))
        found.records += 1
        found.bytes += record_bytes(r.key, r.value, r.headers)
        found.digest.update(r.key, r.value, r.headers)
        found.date(r.timestamp)
        found.acknowledge(1, r.offset, r.offset)
    return tally.writes()


def wait_until(done: Callable[[], bool], what: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)
