"""Counts what one transaction wrote, per topic-partition."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_kafka_eos.kafka.digest import PartitionDigest
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.transaction import TopicPartition


@dataclass
class PartitionTally:
    """Records, bytes and digest of one partition, in the order of its log; offsets as they are acknowledged."""

    records: int = 0
    bytes: int = 0
    acknowledged: int = 0
    first_offset: int = -1
    last_offset: int = -1
    oldest_timestamp_ms: int | None = None
    digest: PartitionDigest = field(default_factory=PartitionDigest)

    def date(self, timestamp_ms: int) -> None:
        """Count the time of records; of several, the earliest."""
        if self.oldest_timestamp_ms is None or timestamp_ms < self.oldest_timestamp_ms:
            self.oldest_timestamp_ms = timestamp_ms

    def acknowledge(self, records: int, first_offset: int, last_offset: int) -> None:
        """Count records that the broker has."""
        self.acknowledged += records
        if self.first_offset < 0 or first_offset < self.first_offset:
            self.first_offset = first_offset
        self.last_offset = max(self.last_offset, last_offset)


class Tally:
    """One :class:`PartitionTally` per partition that was written."""

    def __init__(self) -> None:
        self._found: dict[TopicPartition, PartitionTally] = {}

    def of(self, partition: TopicPartition) -> PartitionTally:
        """The partition's own, made when it is asked for first."""
        found = self._found.get(partition)
        if found is None:
            found = self._found[partition] = PartitionTally()
        return found

    @property
    def records(self) -> int:
        return sum(found.records for found in self._found.values())

    @property
    def acknowledged(self) -> int:
        return sum(found.acknowledged for found in self._found.values())

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._found)

    def writes(self) -> tuple[PartitionWrites, ...]:
        """As the manifest has them, sorted by topic and partition."""
        return tuple(
            PartitionWrites(
                partition.topic,
                partition.partition,
                found.records,
                found.bytes,
                found.first_offset,
                found.last_offset,
                found.digest.hexdigest(),
                found.oldest_timestamp_ms or 0,
            )
            for partition, found in sorted(self._found.items())
        )
