"""Record batches v2: what stands before the records (KIP-98; Kafka's DefaultRecordBatch). No I/O."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

if TYPE_CHECKING:
    # it needs pyarrow, which is not there where commit copies what was lost
    from airflow_kafka_eos.kafka.records.compression import Compressor

#: Bytes before the records.
HEADER_BYTES = 61

_TRANSACTIONAL = 0x10
_MAGIC = 2
#: base offset, length from here on, leader epoch, magic, CRC of all that follows
_FRONT = struct.Struct(">qiibI")
#: attributes, last offset delta, base and max timestamp, producer id, epoch, base sequence, number of records
_BACK = struct.Struct(">hiqqqhii")
#: what counts into the length besides the records: everything after the length itself
_LENGTH_REST = HEADER_BYTES - 12


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
    back = _BACK.pack(
        _TRANSACTIONAL | code,
        records - 1,
        base_timestamp,
        max_timestamp,
        state.producer_id,
        state.producer_epoch,
        sequence,
        records,
    )
    crc, size = crc32c(back), 0
    for piece in pieces:
        crc = crc32c(piece, crc)
        size += len(piece)
    front = _FRONT.pack(0, _LENGTH_REST + size, -1, _MAGIC, crc)
    return SealedBatch(partition, order, sequence, records, [front, back, *pieces], HEADER_BYTES + size)
