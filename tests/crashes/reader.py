"""What other people's clients see of a topic: librdkafka's consumer and admin client, none of our code."""

from __future__ import annotations

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.reading import committed_values


class Reader:
    """One thread's, for many topics one after the other."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers})

    def committed(self, topic: str, partitions: int) -> list[str]:
        """Values that a read_committed reader sees up to the last stable offset, sorted."""
        return committed_values(self._servers, topic, partitions)

    def held_back(self, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
        """Partitions whose last stable offset is not their end: a transaction is open there. Both offsets."""
        asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}  # type: ignore[no-untyped-call]
        levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        answers = [self._admin.list_offsets(asked, isolation_level=level) for level in levels]
        stable, end = ({tp.partition: f.result(30).offset for tp, f in a.items()} for a in answers)
        return {p: (stable[p], end[p]) for p in end if stable[p] != end[p]}
