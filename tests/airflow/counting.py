"""The independent count: two other clients' readers, and nothing of our own code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaAdminClient

from tests.reading import committed_values

PARTITIONS = 2
ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")


@dataclass(frozen=True)
class Count:
    """What a read_committed reader sees of a topic, against what should be there.

    :param seen: records, all of them.
    :param open: transactional ids with an open transaction, and partitions whose last stable offset is not their end.
    """

    seen: int
    missing: int
    duplicate: int
    foreign: int
    open: tuple[str, ...]


def count(bootstrap_servers: str, topic: str, expected: Iterable[str], ids: str = "") -> Count:
    """Read a topic from its beginning.

    :param ids: what the ids of interest have in them; the topic's name when empty.
    """
    wanted = Counter(expected)
    seen = Counter(committed_values(bootstrap_servers, topic, PARTITIONS))
    return Count(
        seen=seen.total(),
        missing=(wanted - seen).total(),
        duplicate=sum(n - wanted[value] for value, n in seen.items() if value in wanted and n > wanted[value]),
        foreign=sum(n for value, n in seen.items() if value not in wanted),
        open=(*open_ids(bootstrap_servers, ids or topic), *held_back(bootstrap_servers, topic)),
    )


def held_back(bootstrap_servers: str, topic: str) -> list[str]:
    """Partitions with something open: what librdkafka is answered for their last stable offset and their end."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(PARTITIONS)}  # type: ignore[no-untyped-call]
    ends = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        futures = admin.list_offsets(asked, isolation_level=level, request_timeout=20)
        ends.append({tp.partition: f.result().offset for tp, f in futures.items()})
    stable, high = ends
    return [f"{topic}-{p} from {stable[p]} to {high[p]}" for p in range(PARTITIONS) if stable[p] != high[p]]


def open_ids(bootstrap_servers: str, part: str) -> list[str]:
    """Ids with ``part`` in them that kafka-python's own listing shows as open."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        found = admin.list_transactions()
        rows = [row for listed in found.values() for row in listed] if isinstance(found, dict) else found
        return sorted(r.transactional_id for r in rows if part in r.transactional_id and r.state.value not in ENDED)
    finally:
        admin.close()
