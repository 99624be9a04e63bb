"""What an independent reader sees: confluent-kafka's consumer, and nothing of our own code."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, KafkaError, TopicPartition


def committed_values(bootstrap_servers: str, topic: str, partitions: int) -> list[str]:
    """Values that a read_committed reader sees up to the last stable offset, sorted."""
    # a new consumer each time: one that is assigned another topic looks at it a second later only
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": str(uuid.uuid4()),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            # a log whose first records were deleted begins later than at 0
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        found, ended = [], set[int]()
        while len(ended) < partitions:
            message = consumer.poll(20)
            assert message is not None, "no end of partition within 20 s"
            error, partition = message.error(), message.partition()
            if error is None:
                found.append((message.value() or b"").decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                assert partition is not None
                ended.add(partition)
        return sorted(found)
    finally:
        consumer.close()
