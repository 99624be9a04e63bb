"""What a run wrote and what its parties claim: plain values, which checkers judge.

Nothing of our package is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Fate(str, Enum):
    """How a foreign transaction ended, as its client was told."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    #: the client could not tell: its commit was cut
    UNKNOWN = "unknown"


#: The header that says who wrote a record; where its value is null, nothing else does.
WHO = "who"

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Record:
    """One data record of the log, as a reader saw it.

    :param timestamp_ms: what the broker says of it; None: the reader was not asked.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    @property
    def said(self) -> bytes:
        """What it says of itself: its value, and where that is null its header :data:`WHO`."""
        if self.value is not None:
            return self.value
        return next((value or b"" for name, value in self.headers if name == WHO), b"")


@dataclass(frozen=True)
class Value:
    """What each record carries: who wrote it. As text, its parts separated by ``|``, then padding.

    With ``at_ms`` the whole record follows from it (:meth:`key_bytes`, :meth:`headers`, :meth:`has_value`): so that
    readers' records can be compared with what was written, down to the last header.

    :param party: ``load``, ``foreign`` or ``plain``.
    :param writer: the load's key, or the producer's name.
    :param unit: number of a load's attempt, or of the foreign transaction; 0 for ``plain``.
    :param key: the record's key; order is judged within (writer, unit, key). Empty: the record has none.
    :param number: from 0 on, within the load (over all of its tasks), the transaction, or the producer.
    :param at_ms: the record's own time, milliseconds since the epoch; 0: it has none, and no headers.
    """

    party: str
    writer: str
    unit: int
    key: str
    number: int
    at_ms: int = 0

    def encode(self, size: int = 0) -> bytes:
        """
        :param size: bytes, at least; what is missing is padded.
        """
        text = f"{self.party}|{self.writer}|{self.unit}|{self.key}|{self.number}|{self.at_ms}|"
        return text.encode().ljust(size, b".")

    @staticmethod
    def decode(value: bytes) -> Value:
        """
        :raises ValueError: nobody of the run wrote this.
        """
        party, writer, unit, key, number, at_ms, _ = value.decode().split("|", 6)
        return Value(party, writer, int(unit), key, int(number), int(at_ms))

    @property
    def key_bytes(self) -> bytes | None:
        """The record's key."""
        return self.key.encode() if self.key else None

    @property
    def has_value(self) -> bool:
        """Whether the record's value is not null. One in eleven of those with a time of their own is."""
        return not self.at_ms or self.number % 11 != 5

    @property
    def headers(self) -> Headers:
        """The record's headers: a name that comes twice, an empty value and a null are among them."""
        if not self.at_ms:
            return ()
        if self.has_value and self.number % 3 == 0:
            return ((WHO, self.encode()),)
        return ((WHO, self.encode()), ("n", str(self.number).encode()), ("empty", b""), ("ü", None), ("n", b"\0\xff"))

    def is_as_written(self, record: Record) -> bool:
        """Whether a record that says this of itself is what its writer wrote, but for the padding of its value."""
        return (
            record.key == self.key_bytes
            and (record.value is not None) == self.has_value
            and record.headers == self.headers
            and (not self.at_ms or record.timestamp_ms == self.at_ms)
        )


@dataclass(frozen=True)
class LoadFact:
    """One load of the run.

    :param topics: where its records may be.
    :param scope: ``task`` or ``load``.
    :param records: numbers 0 to ``records - 1`` make the load.
    :param reported: the load's state in the ledger at the end, such as ``COMMITTED``; None: it knows no such load.
    :param decided: the attempt that the ledger has decided to commit.
    :param acked: whether a run of it succeeded as a whole: its leaf was told that it is committed, and it is clean.
    :param expect: ``committed``, ``absent`` or ``either``: what the scenario allows in the end.
    :param prefix: how its transactional ids begin.
    :param deciding_at: monotonic seconds: nobody began to record the decision for ``decided`` before; None: not known.
    :param told_at: monotonic seconds: when somebody was first told that readers see all of it, whatever else came of
        that run; None: nobody was.
    :param gave_up_s: after so many seconds its people gave up, with retries left; 0: they did not.
    :param left_by_cleanup: transactional ids that a cleanup which had nothing to wait for has left open.
    :param compacted: brokers keep the newest record of a key, and may have taken the others: of those numbers that
        leave the same remainder by ``keys``.
    :param lost_at: monotonic seconds: when its topic was deleted; 0: its ledger was put back to what it was before.
        What was so before is nobody's fault; what is said of it since must still be true.
    """

    key: str
    topics: tuple[str, ...]
    scope: str
    records: int
    reported: str | None
    decided: int | None
    acked: bool
    expect: str
    prefix: str
    deciding_at: float | None = None
    told_at: float | None = None
    gave_up_s: float = 0.0
    left_by_cleanup: tuple[str, ...] = ()
    compacted: bool = False
    keys: int = 1
    lost_at: float | None = None


@dataclass(frozen=True)
class ForeignFact:
    """A transaction of another application.

    :param was_ended: its client, which nothing else can have kept from it, could not end it: somebody else had.
    """

    producer: str
    unit: int
    topic: str
    records: int
    fate: Fate
    transactional_id: str
    was_ended: bool = False


@dataclass(frozen=True)
class PlainFact:
    """What a plain idempotent producer was told is written: the numbers that were acknowledged."""

    producer: str
    topic: str
    acked: tuple[int, ...]


@dataclass(frozen=True)
class OpenTransaction:
    """What a broker lists as open; ``since_ms`` are milliseconds since the epoch."""

    transactional_id: str
    topic_partitions: tuple[tuple[str, int], ...]
    since_ms: int


@dataclass(frozen=True)
class Look:
    """One look of the tailing read_committed reader.

    :param at: monotonic seconds.
    :param seen: by load key, how many of its records are visible so far.
    """

    at: float
    seen: Mapping[str, int]


@dataclass(frozen=True)
class Observation:
    """All that is judged.

    :param tailed: everything that the tailing read_committed reader got, in its order, from the run's start to its end.
    :param final: what a fresh read_committed reader finds in the whole topics after the run.
    :param open: what the brokers list as open after the run's settling time, all ids.
    :param stable_short: by (topic, partition), last stable offset and end offset where they differ at the end.
    :param clock_error_s: looks are of the log's markers, and their times at most so far from those of the loads; None:
        they are a reader's, and do not say when a record became visible.
    :param errors: of our processes, what nobody expects: errors that are none of the package's, deaths without a word.
    """

    loads: tuple[LoadFact, ...]
    foreign: tuple[ForeignFact, ...]
    plain: tuple[PlainFact, ...]
    tailed: tuple[Record, ...]
    final: tuple[Record, ...]
    open: tuple[OpenTransaction, ...]
    stable_short: Mapping[tuple[str, int], tuple[int, int]]
    looks: tuple[Look, ...]
    #: what further readers found at the same time, by their names
    others: Mapping[str, tuple[Record, ...]] = field(default_factory=dict)
    clock_error_s: float | None = None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Violation:
    """What must never be. The kinds are listed in ``tests/faults/checkers.py``."""

    kind: str
    text: str
