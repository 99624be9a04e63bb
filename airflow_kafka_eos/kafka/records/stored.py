"""Record batches as a partition's log has them: told apart, checked, taken apart, and framed for another transaction.

No I/O.
"""

from __future__ import annotations

import struct
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
from airflow_kafka_eos.kafka.records.varint import read_zig_zag
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
    """The whole batches of a Fetch answer, which may end in the middle of one. Formats before v2 have no producer."""
    view, at = memoryview(buffer), 0
    while at + HEADER.size <= len(view):
        base, length, _, magic, _, attributes, delta, first, newest, producer, epoch, _, count = HEADER.unpack_from(
            view, at
        )
        end = at + LENGTH_FROM + length
        if end > len(view):
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

    :raises ConfigurationError: this Python cannot decompress it.
    """
    data = decompressed(batch.attributes & CODEC, batch.data[HEADER_BYTES:])
    lengths: list[int] = []
    keys: list[memoryview] = []
    values: list[memoryview] = []
    sections: list[memoryview] = []
    at = 0
    for _ in range(batch.records):
        size, at = read_zig_zag(data, at)
        end = at + size
        at += 1  # attributes
        while data[at] & 0x80:  # timestamp's delta
            at += 1
        at += 1
        while data[at] & 0x80:  # offset's delta
            at += 1
        key_length, at = read_zig_zag(data, at + 1)
        if key_length > 0:
            keys.append(data[at : at + key_length])
            at += key_length
        value_length, at = read_zig_zag(data, at)
        if value_length > 0:
            values.append(data[at : at + value_length])
            at += value_length
        sections.append(data[at:end])
        lengths += (key_length, value_length, end - at)
        at = end
    packed = struct.pack(f"<{len(lengths)}i", *lengths)
    digest.update_columns(packed, b"".join(keys), b"".join(values), b"".join(sections))
