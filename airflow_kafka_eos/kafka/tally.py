"""Counts what was acknowledged, per topic-partition."""

from __future__ import annotations

from airflow_kafka_eos.manifest import DIGEST_MODULUS, PartitionWrites
from airflow_kafka_eos.transaction import TopicPartition


class Tally:
    """Records, bytes, offsets and digest of one transaction's acknowledged records."""

    def __init__(self) -> None:
        # [records, bytes, first offset, last offset, digest]: one list per partition, touched once per record
        self._found: dict[tuple[str, int], list[int]] = {}

    def add(self, topic: str, partition: int, offset: int, size: int, digest: int) -> None:
        """Count one acknowledged record."""
        found = self._found.get((topic, partition))
        if found is None:
            self._found[topic, partition] = [1, size, offset, offset, digest]
            return
        found[0] += 1
        found[1] += size
        if offset < found[2]:
            found[2] = offset
        if offset > found[3]:
            found[3] = offset
        found[4] += digest

    @property
    def records(self) -> int:
        return sum(found[0] for found in self._found.values())

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(*key) for key in self._found)

    def writes(self) -> tuple[PartitionWrites, ...]:
        """As the manifest has them, sorted by topic and partition."""
        return tuple(
            PartitionWrites(topic, partition, records, size, first, last, f"{digest % DIGEST_MODULUS:032x}")
            for (topic, partition), (records, size, first, last, digest) in sorted(self._found.items())
        )
