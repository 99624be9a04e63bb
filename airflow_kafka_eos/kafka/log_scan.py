"""Reading end markers out of a partition's log: pure functions over the bytes of a Fetch answer.

Only batch headers are read. Records are never decompressed, and what other producers wrote costs nothing.
Layout: record batch v2 (Kafka protocol, "Record Batch"), control records (KIP-98).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from airflow_kafka_eos.evidence import Marker

# baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta, baseTimestamp,
# maxTimestamp, producerId, producerEpoch, baseSequence, recordCount
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_FROM = 12  # batchLength counts what follows itself
_CONTROL = 0x20
_MARKERS = {0: Marker.ABORT, 1: Marker.COMMIT}


class Sought(NamedTuple):
    """The end of one transaction in one partition.

    :param from_offset: the one behind its last record, or a later one that its end is known to be behind.
    :param producer_epoch: the transaction's epoch. Its marker carries this one (EndTxn before v5) or the next one
        (KIP-890, a timeout, or fencing); None: not compared.
    """

    producer_id: int
    producer_epoch: int | None
    from_offset: int


class Scan(NamedTuple):
    """What one Fetch answer showed.

    ``marker`` is None while nothing was found; ``next_offset`` is where to go on.
    """

    marker: Marker | None
    next_offset: int


def scan(
    buffer: bytes | bytearray | memoryview, producer_id: int, from_offset: int, producer_epoch: int | None = None
) -> Scan:
    """Find the first control record of a producer id at or behind an offset (rule 7).

    The story must be one: a data batch of the same producer id that comes before the marker is of a later
    transaction (whose predecessor's marker was compacted away) or was written behind the back of the manifest, and
    a marker with an epoch that this transaction cannot have is of a later one. Both are UNREADABLE.

    :param producer_epoch: see :class:`Sought`.
    """
    sought = Sought(producer_id, producer_epoch, from_offset)
    found, next_offset = scan_all(buffer, {producer_id: [sought]}, from_offset)
    return Scan(found.get(sought), next_offset)


def scan_all(
    buffer: bytes | bytearray | memoryview, sought: Mapping[int, Sequence[Sought]], from_offset: int
) -> tuple[dict[Sought, Marker], int]:
    """:func:`scan` for many transactions of one partition: the log is gone through once.

    :param sought: by producer id.
    :returns: what was found, and the offset to go on at: behind the last batch, or the last one that was needed.
    """
    view = memoryview(buffer)
    found: dict[Sought, Marker] = {}
    missing = sum(map(len, sought.values()))
    at, next_offset = 0, from_offset
    while missing and at + _HEADER.size <= len(view):
        header = _HEADER.unpack_from(view, at)
        base, length, magic, attributes, last_delta = header[0], header[1], header[3], header[5], header[6]
        end = at + _LENGTH_FROM + length
        if end > len(view):
            break  # a Fetch answer may end in the middle of a batch
        last = base + last_delta if magic == 2 else base  # older formats are laid out otherwise
        if last >= from_offset:
            for one in sought.get(header[9], ()) if magic == 2 else ():
                if last >= one.from_offset and one not in found:
                    found[one] = _judge(view[at + _HEADER.size : end], attributes, header, one.producer_epoch)
                    missing -= 1
            next_offset = last + 1
        at = end
    return found, next_offset


def _judge(records: memoryview, attributes: int, header: tuple[int, ...], producer_epoch: int | None) -> Marker:
    epoch = header[10]
    if not attributes & _CONTROL:
        return Marker.UNREADABLE  # data behind the last record
    if producer_epoch is not None and epoch not in (producer_epoch, producer_epoch + 1):
        return Marker.UNREADABLE
    kind = control_type(records)
    return _MARKERS.get(kind, Marker.UNREADABLE) if kind is not None else Marker.UNREADABLE


def control_type(records: memoryview) -> int | None:
    """The type in a control record's key: 0 abort, 1 commit; None when it has none, as after compaction."""
    at = _skip_varint(records, 0)  # length
    at += 1  # attributes
    at = _skip_varint(records, at)  # timestampDelta
    at = _skip_varint(records, at)  # offsetDelta
    if at >= len(records) or records[at] != 8:  # key length 4, zigzag
        return None
    if at + 5 > len(records):
        return None
    version, kind = struct.unpack_from(">hh", records, at + 1)
    return int(kind) if version >= 0 else None


def _skip_varint(data: memoryview, at: int) -> int:
    while at < len(data) and data[at] & 0x80:
        at += 1
    return at + 1
