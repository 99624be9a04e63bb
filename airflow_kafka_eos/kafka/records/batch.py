"""Record batches v2 (Kafka protocol, "Record Batch"; KIP-98): their header, and batches that are to be sent. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

# baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp,
# maxTimestamp, producerId, producerEpoch, baseSequence, recordCount
HEADER = struct.Struct(">qiibIhiqqqhii")
#: Bytes before the records.
HEADER_BYTES = HEADER.size
#: batchLength counts what follows itself
LENGTH_FROM = 12
MAGIC = 2
#: The checksum stands at one offset, and is of all from the other one on.
CRC = struct.Struct(">I")
CRC_AT, CRC_FROM = 17, 21
#: Bits of the attributes.
CODEC, TRANSACTIONAL, CONTROL = 0x07, 0x10, 0x20
#: Kafka's codecs, by their numbers in a batch's attributes.
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

#: From a batch's records to fewer bytes.
Compressor = Callable[[Any], bytes]


@dataclass
class OpenBatch:
    """Records of one partition that have no sequence number yet.

    :param size: an upper bound of their bytes.
    """

    base_timestamp: int
    max_timestamp: int
    pieces: list[Any] = field(default_factory=list)
    records: int = 0
    size: int = 0


@dataclass(eq=False)
class SealedBatch:
    """A whole record batch, sent as it stands however often: sequence and bytes never change.

    :param order: its place among the batches of its partition, from 0 on.
    """

    partition: TopicPartition
    order: int
    sequence: int
    records: int
    data: Sequence[Any]
    bytes: int


def seal(
    batch: OpenBatch,
    partition: TopicPartition,
    order: int,
    state: PreparedTxnState,
    sequence: int,
    codec: tuple[int, Compressor | None],
) -> SealedBatch:
    """Number, compress and frame a batch.

    :param sequence: of its first record; it begins at 0 for each partition of a transaction
        (rule: one-init-per-transaction).
    :param codec: as :func:`.compression.compressor` gives it.
    """
    code, compress = codec
    pieces: list[Any] = batch.pieces
    if compress is not None:
        plain = b"".join(pieces)
        smaller = compress(plain)
        # what cannot be made smaller goes as it is: larger, it might be above the limit that it was cut to
        code, pieces = (code, [smaller]) if len(smaller) < len(plain) else (0, [plain])
    return frame(
        pieces,
        partition,
        order,
        state,
        sequence,
        code=code,
        records=batch.records,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
    )


def frame(
    pieces: Sequence[Any],
    partition: TopicPartition,
    order: int,
    state: PreparedTxnState,
    sequence: int,
    *,
    code: int,
    records: int,
    base_timestamp: int,
    max_timestamp: int,
) -> SealedBatch:
    """Records that are encoded, and compressed by the codec of that code, as a batch of a transaction."""
    size = sum(map(len, pieces))
    header = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        header,
        0,
        0,
        HEADER_BYTES - LENGTH_FROM + size,
        -1,
        MAGIC,
        0,
        TRANSACTIONAL | code,
        records - 1,
        base_timestamp,
        max_timestamp,
        state.producer_id,
        state.producer_epoch,
        sequence,
        records,
    )
    crc = crc32c(header[CRC_FROM:])
    for piece in pieces:
        crc = crc32c(piece, crc)
    CRC.pack_into(header, CRC_AT, crc)
    return SealedBatch(partition, order, sequence, records, [header, *pieces], HEADER_BYTES + size)
