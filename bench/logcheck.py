"""What really stands in a topic: read from the broker's own segment files, batch by batch.

Offsets would not do: markers take offsets too, and how many there are differs between contestants. Here every record
counts as committed, aborted or open by the marker behind it, as a read_committed reader would judge it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Record batch v2: base offset, length, leader epoch, magic, crc, attributes, last offset delta, two timestamps,
#: producer id, epoch, base sequence, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH = 12
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_COMMIT = 1
#: The first four fields of Found.
_FATES = ("committed", "aborted", "open", "plain")


class NotWhatWasWritten(Exception):
    """The topic does not hold exactly the records that were to be written, all committed."""


@dataclass
class Found:
    """Records by their fate, and how they are packed. ``bytes`` are those of data batches, compressed."""

    committed: int = 0
    aborted: int = 0
    open: int = 0
    plain: int = 0
    batches: int = 0
    bytes: int = 0
    transactions: int = 0


def scan(segments: Sequence[bytes | mmap.mmap]) -> Found:
    """One partition's log, its segments in order. A torn batch at the end is not there yet."""
    found = Found()
    pending: dict[int, int] = {}
    for segment in segments:
        at = 0
        while at + _HEADER.size <= len(segment):
            header = _HEADER.unpack_from(segment, at)
            end = at + _BEFORE_LENGTH + header[1]
            if header[1] <= 0 or end > len(segment):
                break
            attributes, producer, count = header[5], header[9], header[12]
            if attributes & _CONTROL:
                records = pending.pop(producer, 0)
                found.transactions += 1
                if _marker_type(segment, at + _HEADER.size) == _COMMIT:
                    found.committed += records
                else:
                    found.aborted += records
            else:
                found.batches += 1
                found.bytes += end - at
                if attributes & _TRANSACTIONAL:
                    pending[producer] = pending.get(producer, 0) + count
                else:
                    found.plain += count
            at = end
    found.open = sum(pending.values())
    return found


def _marker_type(segment: bytes | mmap.mmap, at: int) -> int:
    """0 for abort, 1 for commit: the second int16 in the key of the batch's only record."""
    # length, attributes (one byte), timestamp delta, offset delta, key length: all of a marker fit one byte each
    # but perhaps the length
    while segment[at] & 0x80:
        at += 1
    return int(struct.unpack_from(">h", segment, at + 1 + 1 + 1 + 1 + 1 + 2)[0])


def scan_topic(data: Sequence[Path], topic: str) -> list[Found]:
    """All partitions of a topic, as long as they are when they are asked for: what comes meanwhile is not counted.

    :param data: for each partition the ``log.dirs`` of the broker whose copy is read.
    """
    every = []
    for partition, folder in enumerate(data):
        maps = []
        for file in sorted((folder / f"{topic}-{partition}").glob("*.log")):
            with open(file, "rb") as opened:
                if file.stat().st_size:
                    maps.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        every.append(maps)
    found = [scan(maps) for maps in every]
    for maps in every:
        for one in maps:
            one.close()
    return found


def check(found: Sequence[Found], wanted: Sequence[int] | int, *, transactional: bool = True) -> None:
    """Every partition has exactly its records, all of them committed; or all of them outside transactions.

    :param wanted: records by partition; or of all partitions together, where no key says in which they belong.
    :param transactional: False for those who write without transactions.
    :raises NotWhatWasWritten: it does not.
    """
    if isinstance(wanted, int):
        whole = Found(*(sum(getattr(one, fate) for one in found) for fate in _FATES))
        _check_one("all partitions", whole, wanted, transactional)
        return
    for partition, (one, count) in enumerate(zip(found, wanted, strict=True)):
        _check_one(f"partition {partition}", one, count, transactional)


def _check_one(where: str, one: Found, count: int, transactional: bool) -> None:
    right = Found(committed=count) if transactional else Found(plain=count)
    if any(getattr(one, fate) != getattr(right, fate) for fate in _FATES):
        aim = "committed" if transactional else "outside transactions"
        raise NotWhatWasWritten(
            f"{where}: {count} records were to be {aim}, there are {one.committed} committed, {one.aborted} aborted, "
            f"{one.open} open, {one.plain} outside transactions"
        )
