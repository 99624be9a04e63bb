"""When a load became visible, by the log itself: its commit markers.

A reader's looks have its own reading time in them (8 s for 300,000 records on a busy machine), and what others hold
back; markers carry the broker's clock, in ms. Read from the brokers' files: no client returns control records. Only
the headers of batches are read.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.facts import LoadFact, Look, Record
from tests.faults.visible import LOAD, Visible

#: Of a record batch v2: base offset, length behind this field, leader epoch, magic, CRC, attributes, last offset
#: delta, base and max timestamp, producer id and epoch, base sequence, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_BEHIND_LENGTH = 12
_CONTROL = 1 << 5
#: Of a control record: five varints of one byte each (length, attributes, two deltas, key's length), then its key.
_CONTROL_KEY = struct.Struct(">5xhh")
_COMMIT = 1


class Batch(NamedTuple):
    """:ivar commit: None for data; of a control batch, whether it is a commit marker. ``at_ms``: its timestamp."""

    base: int
    producer_id: int
    at_ms: int
    commit: bool | None


#: Markers' times are cut to whole ms, and clocks are read one behind the other.
CLOCK_ERROR_S = 0.01


def wall_ahead_s() -> float:
    """Seconds from the monotonic clock to the wall's: markers have this one, looks and timelines that one."""
    found = []
    for _ in range(5):
        before = time.monotonic()
        wall = time.time()
        after = time.monotonic()
        found.append((after - before, wall - (before + after) / 2))
    return min(found)[1]  # whoever is interrupted between them measures that, too


def marker_looks(
    data: Sequence[Path], loads: Sequence[LoadFact], final: Sequence[Record], ahead_s: float
) -> tuple[Look, ...]:
    """What a reader would have seen that needs no time to read, and that nobody else's transaction holds back: one look
    for each moment at which a marker made records of a load visible.

    :param data: the ``log.dirs`` of all brokers of this machine: of each partition the longest copy is read.
    :param ahead_s: :func:`wall_ahead_s`.
    """
    visible = Visible(final)
    logs: dict[tuple[str, int], list[Batch]] = {}
    events: dict[int, Counter[str]] = defaultdict(Counter)
    for load in loads:
        places: dict[tuple[str, int], list[int]] = defaultdict(list)
        for _, record in visible.all_of(LOAD, load.key):
            places[record.topic, record.partition].append(record.offset)
        for place, offsets in places.items():
            if place not in logs:
                logs[place] = _log(data, *place)
            for stamp, count in _stamps(logs[place], offsets).items():
                events[stamp][load.key] += count
    looks, seen = [], Counter[str]()
    for stamp in sorted(events):
        seen += events[stamp]
        looks.append(Look(stamp / 1000 - ahead_s, dict(seen)))
    return tuple(looks)


def batches(folder: Path) -> Iterator[Batch]:
    """All of one partition's folder, in the order of their offsets."""
    for segment in sorted(folder.glob("*.log")):
        with open(segment, "rb") as file:
            while len(head := file.read(_HEADER.size)) == _HEADER.size:
                base, length, _, magic, _, attributes, _, _, stamp, producer_id, *_ = _HEADER.unpack(head)
                assert magic == 2, f"{segment}: a batch of format {magic} at offset {base}"
                rest = length + _BEHIND_LENGTH - _HEADER.size
                commit = None
                if attributes & _CONTROL:
                    commit = _CONTROL_KEY.unpack(file.read(_CONTROL_KEY.size))[1] == _COMMIT
                    rest -= _CONTROL_KEY.size
                file.seek(rest, 1)
                yield Batch(base, producer_id, stamp, commit)


def _log(data: Sequence[Path], topic: str, partition: int) -> list[Batch]:
    copies = [folder for one in data if (folder := one / f"{topic}-{partition}").is_dir()]
    assert copies, f"no copy of {topic}-{partition} in {data}"
    return list(batches(max(copies, key=lambda f: sum(s.stat().st_size for s in f.glob("*.log")))))


def _stamps(log: Sequence[Batch], offsets: Sequence[int]) -> Counter[int]:
    """By ms since the epoch, how many of these offsets became visible: with their producer's first commit marker behind
    them, or at once where there is none."""
    starts = [batch.base for batch in log]
    wanted = Counter(bisect_right(starts, offset) - 1 for offset in offsets)
    stamps = Counter[int]()
    next_marker: dict[int, Batch] = {}
    for n, batch in reversed(list(enumerate(log))):
        if batch.commit is not None:
            next_marker[batch.producer_id] = batch
        elif n in wanted:
            marker = next_marker.get(batch.producer_id)
            stamps[marker.at_ms if marker is not None and marker.commit else batch.at_ms] += wanted[n]
    return stamps
