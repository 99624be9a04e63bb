"""Record batches as a partition's log has them: told apart, checked, digested, and framed for another transaction.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from airflow_kafka_eos.kafka.records.batch import (
    CODEC,
    CONTROL,
    CRC,
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    MAGIC,
    SealedBatch,
    frame,
)
from airflow_kafka_eos.kafka.records.compression import decompressed
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.kafka.records.kernel import kernel
from airflow_kafka_eos.kafka.records.split import split
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition


class StoredBatch(NamedTuple):
    """One record batch. ``data`` is all of it; ``offsets`` counts what it spans, ``records`` what is still there."""

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    attributes: int
    records: int
    base_timestamp: int
    max_timestamp: int
    data: memoryview

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_whole(self) -> bool:
        """No record was taken out by compaction."""
        return self.records == self.last_offset - self.base_offset + 1

    @property
    def is_intact(self) -> bool:
        """The checksum fits."""
        return bool(crc32c(self.data[CRC_FROM:]) == CRC.unpack_from(self.data, CRC_AT)[0])


def batches(buffer: bytes | bytearray | memoryview) -> Iterator[StoredBatch]:
    """The whole batches of a Fetch answer, which may end in the middle of one, or of what is none.

    Formats before v2 have no producer.
    """
    view, at = memoryview(buffer), 0
    while at + HEADER.size <= len(view):
        base, length, _, magic, _, attributes, delta, first, newest, producer, epoch, _, count = HEADER.unpack_from(
            view, at
        )
        end = at + LENGTH_FROM + length
        if not at < end <= len(view):
            return
        if magic == MAGIC:
            yield StoredBatch(
                base, base + delta, producer, epoch, attributes, count, first, newest, view[at:end]
            )
        else:
            yield StoredBatch(base, base, -1, -1, 0, 0, 0, 0, view[at:end])
        at = end


def reframe(
    batch: StoredBatch, partition: TopicPartition, order: int, state: PreparedTxnState, sequence: int
) -> SealedBatch:
    """The same records, as they were compressed, in another transaction.

    :param sequence: of the first record within that transaction's partition.
    """
    # gone is who stamped the records: what the topic makes of their times is the topic's own setting
    return frame(
        [batch.data[HEADER_BYTES:]],
        partition,
        order,
        state,
        sequence,
        code=batch.attributes & CODEC,
        records=batch.records,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
    )


def feed(batch: StoredBatch, digest: PartitionDigest) -> None:
    """Add a batch's records to a digest, see :mod:`airflow_kafka_eos.kafka.records.digest`.

    :raises BrokenRecords: it does not hold the records that its header counts. The digest is as it was.
    :raises ConfigurationError: this Python cannot decompress it.
    """
    section = decompressed(batch.attributes & CODEC, batch.data[HEADER_BYTES:])
    native = kernel()
    digest.update_columns(*(split if native is None else native.split)(section, batch.records))
