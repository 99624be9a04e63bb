"""Reading end markers out of a partition's log: what Fetch answers show, and what it proves. No I/O.

Only batch headers are read, and control records (KIP-98). Records are never decompressed, and what other producers
wrote costs nothing.

Compaction takes evidence away, at times that the topic's settings tell. It comes to a segment once it is closed and its
newest record is ``min.compaction.lag.ms`` old. It takes records of aborted transactions, and those whose key was
written again. From the first record of an open transaction on it takes nothing. A marker is kept as long as a batch of
its transaction is there, and then for ``delete.retention.ms``. The last batch of a producer stays, emptied, while its
partition remembers the producer (``producer.id.expiration.ms``), unless its end has raised the epoch (Kafka 3.9 to 4.4,
``Cleaner.cleanInto``).
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_kafka_eos.kafka.records import varint
from airflow_kafka_eos.kafka.records.batch import HEADER_BYTES, TRANSACTIONAL
from airflow_kafka_eos.kafka.records.stored import StoredBatch, batches
from airflow_kafka_eos.transaction import Marker

_MARKERS = {0: Marker.ABORT, 1: Marker.COMMIT}
_FOLLOWED = {Marker.ABORT: Marker.COMPACTED_THEN_ABORT, Marker.COMMIT: Marker.COMPACTED_THEN_COMMIT}


class Sought(NamedTuple):
    """The end of one transaction in one partition.

    :param producer_epoch: the transaction's epoch; None: not compared. Its marker carries this one (EndTxn before v5)
        or the next one (KIP-890, a timeout, or fencing). On Kafka 4.0.0 a timeout and fencing add two (KAFKA-19367).
    :param last_offset: of its last record there.
    :param first_offset: of its first one; None: not known.
    """

    producer_id: int
    producer_epoch: int | None
    last_offset: int
    first_offset: int | None = None


@dataclass
class _Track:
    """How far one search has come.

    ``own_from``: from there to its last record a batch of its own is looked for, as long as it ``is_waiting``.
    ``own_at``: an offset in such a batch, and ``own_in`` the number of the answer that showed it. ``is_cut_off``: the
    log begins, or ended, right behind its last record. ``is_gone``: no batch of its own is left there.
    """

    sought: Sought
    own_from: int
    is_waiting: bool = True
    own_at: int | None = None
    own_in: int = -1
    is_cut_off: bool = False
    is_gone: bool = False
    marker: Marker | None = None
    is_unsure: bool = False


class LogScan:
    """One partition's log, gone through once for many transactions: fed with its Fetch answers, in order.

    The first control record of the producer id behind a transaction's last record is its own only if its own cannot
    have been taken out before (rule: compacted-is-doubt). Compaction takes aborted records, and what was written again
    under the same key; then, at last, the marker. It keeps a marker as long as any batch of its transaction is left. So
    one of these must hold:

    - A batch of the transaction is there: in the very answer that shows the marker (an answer is of one file, which
      compaction replaces as a whole), or still there afterwards (:attr:`unsure`).
    - No offset is missing between the last record and the marker.

    Without either it is COMPACTED, or COMPACTED_THEN_ABORT and COMPACTED_THEN_COMMIT, where a control record of its
    producer comes nevertheless.

    A data batch of the same producer id that comes before the marker was written behind the back of the manifest; a
    marker with an epoch that this transaction cannot have, or an emptied one, says nothing; and where another batch
    stands in place of its last record, the log was truncated. All these are UNREADABLE.

    :param whole: look for any batch of the transaction, from its first offset on, instead of the one with its last.
    """

    def __init__(self, sought: Iterable[Sought], *, whole: bool = False) -> None:
        self._whole = whole
        self._tracks = [
            _Track(s, s.first_offset if whole and s.first_offset is not None else s.last_offset)
            for s in dict.fromkeys(sought)
        ]
        self._by_producer: dict[int, list[_Track]] = defaultdict(list)
        for track in self._tracks:
            self._by_producer[track.sought.producer_id].append(track)
        #: by their last offsets; some of them wait no more
        self._waiting = deque(sorted(self._tracks, key=lambda t: t.sought.last_offset))
        self._unsettled = len(self._tracks)
        self._answers = 0
        self._gap = -1  # the last offset that is missing in what was read
        self.next_offset = min(t.own_from for t in self._tracks)

    # -- what was found --------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return not self._unsettled

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever an answer has said something."""
        return self._unsettled, self.next_offset

    @property
    def found(self) -> dict[Sought, Marker]:
        """But for those that are :attr:`unsure`."""
        return {t.sought: t.marker for t in self._tracks if t.marker is not None and not t.is_unsure}

    @property
    def unsure(self) -> dict[Sought, tuple[Marker, int]]:
        """Markers that are valid if a batch of the transaction is still there now; with an offset in it."""
        return {
            t.sought: (t.marker, t.own_at)
            for t in self._tracks
            if t.is_unsure and t.marker is not None and t.own_at is not None
        }

    # -- what is read ----------------------------------------------------------------------------------------------

    def feed(self, buffer: bytes | bytearray | memoryview) -> None:
        """One Fetch answer for :attr:`next_offset`; it may end in the middle of a batch."""
        self._answers += 1
        for batch in batches(buffer):
            if batch.last_offset >= self.next_offset:
                self._see(batch)
            if self.is_done:
                return
        self._go_on_at(self.next_offset)

    def end(self, high_watermark: int) -> None:
        """Nothing more comes: whoever is left has no marker up to there."""
        ahead = []
        for track in self._tracks:
            last = track.sought.last_offset
            if track.marker is not None:
                continue
            if track.is_waiting and last >= high_watermark:
                # not everywhere yet, or truncated: then there is nothing behind it either
                track.is_waiting, track.is_cut_off = False, True
                ahead.append(last + 1)
            elif track.is_gone or track.is_waiting:
                self._settle(track, Marker.COMPACTED)
            elif track.is_cut_off and self._gap > last:
                self._settle(track, Marker.UNREADABLE)
            else:
                self._settle(track, Marker.MISSING)
        self.next_offset = min(ahead, default=self.next_offset)

    def out_of_range(self) -> None:
        """The log does not have :attr:`next_offset`: deleted up to behind it, or truncated before it."""
        for track in self._tracks:
            if track.marker is not None or track.own_from > self.next_offset:
                continue
            if track.is_waiting and track.sought.last_offset == self.next_offset:
                # its marker may be the first of what is left
                track.is_waiting, track.is_cut_off = False, True
            else:
                self._settle(track, Marker.UNREADABLE)
        self._go_on_at(self.next_offset + 1)

    def unreadable(self) -> None:
        """The topic is gone, or another one."""
        for track in self._tracks:
            if track.marker is None:
                self._settle(track, Marker.UNREADABLE)

    # -- private ---------------------------------------------------------------------------------------------------

    def _settle(self, track: _Track, marker: Marker) -> None:
        track.marker, track.is_waiting = marker, False
        self._unsettled -= 1

    def _go_on_at(self, offset: int) -> None:
        """On to where somebody still looks; what is jumped over is not missing."""
        starts = [t.own_from if t.is_waiting else offset for t in self._tracks if t.marker is None]
        self.next_offset = max(offset, min(starts, default=offset))

    def _see(self, batch: StoredBatch) -> None:
        if batch.base_offset > self.next_offset:
            self._gap = batch.base_offset - 1
        for track in self._passed(batch.base_offset - 1):
            track.is_waiting, track.is_gone = False, True
        for track in self._by_producer.get(batch.producer_id, ()):
            if track.marker is None and batch.last_offset >= track.own_from:
                self._show(track, batch)
        for track in self._passed(batch.last_offset):
            if batch.base_offset <= track.sought.last_offset:
                self._settle(track, Marker.UNREADABLE)  # somebody else's stands where its last record was
        self.next_offset = batch.last_offset + 1

    def _passed(self, offset: int) -> Iterator[_Track]:
        """Those that still wait for a batch of their own, and have their last record there or before."""
        while self._waiting and (not self._waiting[0].is_waiting or self._waiting[0].sought.last_offset <= offset):
            track = self._waiting.popleft()
            if track.is_waiting:
                yield track

    def _show(self, track: _Track, batch: StoredBatch) -> None:
        """A batch of the producer id, at or behind where its own are looked for."""
        last = track.sought.last_offset
        if batch.base_offset <= last:
            if not is_of(batch, track.sought):
                self._settle(track, Marker.UNREADABLE)
            elif not track.is_cut_off:
                track.is_waiting = False
                track.own_at, track.own_in = max(batch.base_offset, track.own_from), self._answers
            return
        marker = _judge(batch, track.sought.producer_epoch)
        if track.is_gone:
            marker = _FOLLOWED.get(marker, Marker.COMPACTED)
        elif self._gap > last and track.is_cut_off:
            marker = Marker.UNREADABLE
        elif self._gap > last:
            track.is_unsure = track.own_in != self._answers
        self._settle(track, marker)


class StillThere:
    """Whether batches of transactions are still in a partition's log, behind the answers that showed their markers.

    :param unsure: of a :class:`LogScan`.
    """

    def __init__(self, unsure: Mapping[Sought, tuple[Marker, int]]) -> None:
        todo = ((at, sought, marker) for sought, (marker, at) in unsure.items())
        self._todo = deque(sorted(todo, key=lambda one: one[0]))
        self.found: dict[Sought, Marker] = {}

    @property
    def is_done(self) -> bool:
        return not self._todo

    @property
    def progress(self) -> tuple[int, int]:
        return len(self._todo), 0

    @property
    def next_offset(self) -> int:
        return self._todo[0][0] if self._todo else 0

    def feed(self, buffer: bytes | bytearray | memoryview) -> None:
        """One Fetch answer for :attr:`next_offset`."""
        first = next((b for b in batches(buffer) if b.last_offset >= self.next_offset), None)
        if first is not None:
            at, sought, marker = self._todo.popleft()
            is_own = first.producer_id == sought.producer_id and is_of(first, sought)
            self.found[sought] = marker if first.base_offset <= at and is_own else Marker.COMPACTED

    def end(self, high_watermark: int) -> None:
        """The log has nothing more from there on."""
        self._settle(Marker.COMPACTED)

    def out_of_range(self) -> None:
        """Deleted meanwhile."""
        self._settle(Marker.UNREADABLE)

    def unreadable(self) -> None:
        """The topic is gone, or another one."""
        self._settle(Marker.UNREADABLE)

    def _settle(self, marker: Marker) -> None:
        self.found.update({sought: marker for _, sought, _ in self._todo})
        self._todo.clear()


class TailScan:
    """What stands behind an offset that each transaction's marker is known to stand behind, too.

    Nothing of the transaction stands between its last record and that offset: its leader had counted its records, and
    showed it open, after the offset was the log's end. So its first batch from there on is its marker, or was written
    behind the back of the manifest. Only for logs that are not compacted.

    Nobody has seen the transaction's own records here: a marker counts once they were looked for (:class:`StillThere`).

    :param behind: by transaction, the offset.
    :param most_bytes: it ends early once so much was read; None: no limit.
    """

    def __init__(self, behind: Mapping[Sought, int], *, most_bytes: int | None = None) -> None:
        self._left = dict(behind)
        self._by_producer: dict[int, list[Sought]] = defaultdict(list)
        for sought in behind:
            self._by_producer[sought.producer_id].append(sought)
        self._most_bytes = most_bytes
        self.is_endless = most_bytes is None
        self.found: dict[Sought, Marker] = {}
        self.next_offset = min(behind.values())
        #: those that have no marker up to the end of the log
        self.at_end: set[Sought] = set()
        self.is_done = False

    @property
    def progress(self) -> tuple[int, int]:
        return len(self._left), self.next_offset

    def feed(self, buffer: bytes | bytearray | memoryview) -> None:
        """One Fetch answer for :attr:`next_offset`; it may end in the middle of a batch."""
        for batch in batches(buffer):
            if batch.last_offset < self.next_offset:
                continue
            if batch.base_offset > self.next_offset:
                self.is_done = True  # something is missing: go through all of the log
                return
            for sought in self._by_producer.get(batch.producer_id, ()):
                if sought in self._left and batch.base_offset >= self._left[sought]:
                    self.found[sought] = _judge(batch, sought.producer_epoch)
                    del self._left[sought]
            self.next_offset = batch.last_offset + 1
        if self._most_bytes is not None:
            self._most_bytes -= len(buffer)
        self.is_done = not self._left or (self._most_bytes is not None and self._most_bytes <= 0)

    def end(self, high_watermark: int) -> None:
        """Nothing more comes."""
        self.at_end = {s for s, behind in self._left.items() if behind <= self.next_offset}
        self.is_done = True

    def out_of_range(self) -> None:
        """The log begins later, or ends earlier: go through all of it."""
        self.is_done = True

    def unreadable(self) -> None:
        """The topic is gone, or another one."""
        self.is_done = True


def is_of(batch: StoredBatch, sought: Sought) -> bool:
    """Whether a batch of the producer id is one of the transaction's. Compaction may have emptied it."""
    is_data = batch.attributes & TRANSACTIONAL and not batch.is_control
    return bool(is_data) and sought.producer_epoch in (None, batch.producer_epoch)


def _judge(batch: StoredBatch, producer_epoch: int | None) -> Marker:
    if not batch.is_control:
        return Marker.UNREADABLE  # data behind the last record
    kind = control_type(batch.data[HEADER_BYTES :])
    marker = _MARKERS.get(kind, Marker.UNREADABLE) if kind is not None else Marker.UNREADABLE
    if producer_epoch is not None:
        allowed = (0, 1, 2) if marker is Marker.ABORT else (0, 1)
        if batch.producer_epoch - producer_epoch not in allowed:
            return Marker.UNREADABLE
    return marker


def control_type(records: memoryview) -> int | None:
    """The type in a control record's key: 0 abort, 1 commit; None when it has none, as after compaction."""
    at = varint.skip(records, 0)  # length
    at += 1  # attributes
    at = varint.skip(records, at)  # timestampDelta
    at = varint.skip(records, at)  # offsetDelta
    if at >= len(records) or records[at] != 8:  # key length 4, zigzag
        return None
    if at + 5 > len(records):
        return None
    version, kind = struct.unpack_from(">hh", records, at + 1)
    return int(kind) if version >= 0 else None


# -- what a compacted topic leaves, and for how long -------------------------------------------------------------------

#: The topic settings that are read here.
COMPACTION = ("cleanup.policy", "delete.retention.ms", "min.compaction.lag.ms")
#: For how long after its end a transaction should be told from its log: a person may have to look.
WANTED_MS = 86_400_000


def is_compacted(config: Mapping[str, str]) -> bool:
    return "compact" in config.get("cleanup.policy", "delete").split(",")


def marker_kept_ms(config: Mapping[str, str]) -> int | None:
    """Milliseconds for which compaction leaves a transaction's marker, from its end; None: settings are not known."""
    if not all(key in config for key in COMPACTION):
        return None
    return max(0, int(config["min.compaction.lag.ms"])) + max(0, int(config["delete.retention.ms"]))


def may_be_gone(config: Mapping[str, str], open_at_ms: float, now_ms: float) -> bool:
    """Whether compaction may have taken the marker of a transaction that was open at a moment.

    Half the time counts: clocks of different machines are compared, and cleaning begins at its own.

    :param config: of the topic, see :data:`COMPACTION`.
    """
    kept_ms = marker_kept_ms(config)
    return kept_ms is None or now_ms - open_at_ms >= kept_ms / 2


def warning(topic: str, config: Mapping[str, str]) -> str:
    """What a topic's settings mean for a load that is decided now; an empty text when they are no matter."""
    kept_ms = marker_kept_ms(config)
    if not is_compacted(config) or kept_ms is None:
        return ""
    found = []
    lag_ms = int(config["min.compaction.lag.ms"])
    if kept_ms < WANTED_MS:
        found.append(
            f"once its log is cleaned, end markers are kept for {kept_ms / 1000:g} s (min.compaction.lag.ms={lag_ms} "
            f"and delete.retention.ms={config['delete.retention.ms']}): what commit has not seen by then may be in "
            "doubt for good"
        )
    if lag_ms < WANTED_MS:
        found.append(
            f"what is lost after the decision can be copied for {lag_ms / 1000:g} s only (min.compaction.lag.ms), and "
            "must be prepared again then"
        )
    return f"topic {topic} is compacted: {'; '.join(found)}" if found else ""
