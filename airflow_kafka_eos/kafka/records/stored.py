"""Record batches as a partition's log has them: told apart, checked, taken apart, and framed for another transaction.

No I/O. Layout: record batch v2 (Kafka protocol, "Record Batch"; KIP-98).
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import lz4.frame
from crc32c import crc32c

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.producer.options import COMPRESSIONS
from airflow_kafka_eos.kafka.records.batch import HEADER_BYTES, SealedBatch, frame
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

# baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp,
# maxTimestamp, producerId, producerEpoch, baseSequence, recordCount
HEADER = struct.Struct(">qiibIhiqqqhii")
#: batchLength counts what follows itself
LENGTH_FROM = 12
CONTROL = 0x20
_CODEC = 0x07
_CRC_FROM = 21
_XERIAL = b"\x82SNAPPY\x00"


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
        return bool(crc32c(self.data[_CRC_FROM:]) == struct.unpack_from(">I", self.data, _CRC_FROM - 4)[0])


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
        if magic == 2:
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
        code=batch.attributes & _CODEC,
        records=batch.records,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
    )


def feed(batch: StoredBatch, digest: PartitionDigest) -> None:
    """Add a batch's records to a digest, see :mod:`airflow_kafka_eos.kafka.records.digest`.

    :raises ConfigurationError: this Python cannot decompress it.
    """
    data = decompressed(batch)
    lengths: list[int] = []
    keys: list[memoryview] = []
    values: list[memoryview] = []
    sections: list[memoryview] = []
    at = 0
    for _ in range(batch.records):
        size, at = _signed(data, at)
        end = at + size
        at += 1  # attributes
        while data[at] & 0x80:  # timestamp's delta
            at += 1
        at += 1
        while data[at] & 0x80:  # offset's delta
            at += 1
        key_length, at = _signed(data, at + 1)
        if key_length > 0:
            keys.append(data[at : at + key_length])
            at += key_length
        value_length, at = _signed(data, at)
        if value_length > 0:
            values.append(data[at : at + value_length])
            at += value_length
        sections.append(data[at:end])
        lengths += (key_length, value_length, end - at)
        at = end
    packed = struct.pack(f"<{len(lengths)}i", *lengths)
    digest.update_columns(packed, b"".join(keys), b"".join(values), b"".join(sections))


def decompressed(batch: StoredBatch) -> memoryview:
    """A batch's records as they were before compression.

    :raises ConfigurationError: zstd or snappy without pyarrow.
    """
    data = batch.data[HEADER_BYTES:]
    codec = COMPRESSIONS[batch.attributes & _CODEC]
    if codec == "none":
        return data
    if codec == "gzip":
        return memoryview(gzip.decompress(data))
    if codec == "lz4":
        return memoryview(lz4.frame.decompress(data))
    try:
        import pyarrow as pa
    except ImportError:
        raise ConfigurationError(
            f"records compressed with {codec} cannot be checked without pyarrow",
            remedy="Install pyarrow where commit runs, then run it again",
        ) from None
    if codec == "zstd":
        with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
            return memoryview(stream.read())
    return memoryview(b"".join(_snappy(data, pa.Codec("snappy"))))


def _snappy(data: memoryview, codec: Any) -> Iterator[bytes]:
    """snappy-java's blocks behind their lengths, or one block as librdkafka may write it."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        yield _unsnapped(data, codec)
        return
    at = len(_XERIAL) + 8  # two versions
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        yield _unsnapped(data[at : at + size], codec)
        at += size


def _unsnapped(block: memoryview, codec: Any) -> bytes:
    size, shift, at = 0, 0, 0
    while True:  # snappy begins with the length that it will have
        size |= (block[at] & 0x7F) << shift
        if block[at] < 0x80:
            break
        at, shift = at + 1, shift + 7
    return bytes(codec.decompress(block, decompressed_size=size, asbytes=True))


def _signed(data: memoryview, at: int) -> tuple[int, int]:
    """A zig-zag varint, and the place behind it."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
