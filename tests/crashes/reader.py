"""What other people's clients see of a topic: librdkafka's consumer and admin client, none of our code."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec


class Reader:
    """One thread's, for many topics one after the other."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers})

    def committed(self, topic: str, partitions: int) -> list[str]:
        """Values that a read_committed reader sees up to the last stable offset, sorted."""
        # a new consumer each time: one that is assigned another topic looks at it a second later only
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": str(uuid.uuid4()),
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
            found, ended = [], set[int]()
            while len(ended) < partitions:
                message = consumer.poll(20)
                assert message is not None, "no end of partition within 20 s"
                error = message.error()
                if error is None:
                    found.append((message.value() or b"").decode())
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
            return sorted(found)
        finally:
            consumer.close()

    def held_back(self, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
        """Partitions whose last stable offset is not their end: a transaction is open there. Both offsets."""
        asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
        levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        answers = [self._admin.list_offsets(asked, isolation_level=level) for level in levels]
        stable, end = ({tp.partition: f.result(30).offset for tp, f in a.items()} for a in answers)
        return {p: (stable[p], end[p]) for p in end if stable[p] != end[p]}
