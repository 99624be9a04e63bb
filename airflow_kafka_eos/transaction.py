"""One Kafka transaction: what names it (KIP-939), what its coordinator shows, and what became of it.

A prepared transaction is a pair (transactional id, PreparedTxnState): all of its records are flushed, and it
is still open. FLIP-319 keeps the same pair as its committable.

What became of it is judged by the partitions' logs alone (rule: log-is-the-evidence). Per partition the evidence is the
first control record of its producer id behind its last record, as long as it cannot be a later transaction's:
:class:`airflow_kafka_eos.kafka.records.scan.LogScan`. Error codes and the coordinator's present state are hints; they
never become an outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, assert_never

from airflow_kafka_eos.errors import ConfigurationError

MAX_PRODUCER_ID = 2**63 - 1
MAX_PRODUCER_EPOCH = 2**15 - 1
#: Sequence numbers of a producer in a partition wrap from here to 0 (KIP-98).
SEQUENCE_MODULUS = 2**31
#: What a coordinator shows as the timeout of a transaction that was initialised with Enable2Pc (KIP-939): none.
TWO_PHASE_TIMEOUT_MS = 2**31 - 1
_CANONICAL = re.compile(r"(0|[1-9][0-9]{0,18}):(0|[1-9][0-9]{0,4})", re.ASCII)


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class PreparedTxnState:
    """KIP-939's PreparedTxnState: a producer id and epoch, as the string ``"<producer id>:<epoch>"``.

    The empty state stands for "no transaction"; its string is ``""``. States are compared for equality only:
    epochs roll over and producer ids change on exhaustion (rule: recorded-identity).
    """

    producer_id: int
    producer_epoch: int

    EMPTY: ClassVar[PreparedTxnState]

    def __post_init__(self) -> None:
        if (self.producer_id, self.producer_epoch) == (-1, -1):
            return
        if not 0 <= self.producer_id <= MAX_PRODUCER_ID:
            raise ConfigurationError(
                f"producer id {self.producer_id} of a PreparedTxnState is not in 0..{MAX_PRODUCER_ID}",
                remedy="Use the producer id that InitProducerId answered, or the empty state",
            )
        if not 0 <= self.producer_epoch <= MAX_PRODUCER_EPOCH:
            raise ConfigurationError(
                f"producer epoch {self.producer_epoch} of a PreparedTxnState is not in 0..{MAX_PRODUCER_EPOCH}",
                remedy="Use the epoch that InitProducerId answered, or the empty state",
            )

    @classmethod
    def parse(cls, text: str) -> PreparedTxnState:
        """Read ``"<producer id>:<epoch>"`` or ``""``.

        :raises ConfigurationError: for anything else; only the canonical form is read, so that two different
            strings never mean one transaction.
        """
        if text == "":
            return cls.EMPTY
        match = _CANONICAL.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"PreparedTxnState {text!r} is not '<producer id>:<producer epoch>'",
                remedy="Pass the string that prepare returned, unchanged",
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return "" if self.is_empty else f"{self.producer_id}:{self.producer_epoch}"

    @property
    def is_empty(self) -> bool:
        """True for the state that stands for "no transaction"."""
        return self.producer_id == -1


PreparedTxnState.EMPTY = PreparedTxnState(-1, -1)


@dataclass(frozen=True)
class PreparedTransaction:
    """FLIP-319's committable: what a decision names and an EndTxn ends (rule: recorded-identity)."""

    transactional_id: str
    state: PreparedTxnState

    def __str__(self) -> str:
        return f"{self.transactional_id} ({self.state})"


class CoordinatorState(str, Enum):
    """A transaction's state as its coordinator reports it (KIP-664). A hint, never evidence.

    Rule: log-is-the-evidence.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    #: one that a newer broker has
    UNKNOWN = "Unknown"

    @property
    def is_open(self) -> bool:
        """Its transaction still holds back the last stable offset of its partitions."""
        match self:
            case _C.ONGOING | _C.PREPARE_COMMIT | _C.PREPARE_ABORT | _C.PREPARE_EPOCH_FENCE:
                return True
            case _C.EMPTY | _C.COMPLETE_COMMIT | _C.COMPLETE_ABORT | _C.DEAD | _C.UNKNOWN:
                return False
        assert_never(self)

    @property
    def is_at_rest(self) -> bool:
        """Its coordinator has nothing more to do for it."""
        return not self.is_open and self is not _C.UNKNOWN

    @property
    def is_committed(self) -> bool:
        """Its last transaction is committed, or about to be."""
        match self:
            case _C.PREPARE_COMMIT | _C.COMPLETE_COMMIT:
                return True
            case _C.EMPTY | _C.ONGOING | _C.PREPARE_ABORT | _C.COMPLETE_ABORT | _C.DEAD | _C.PREPARE_EPOCH_FENCE:
                return False
            case _C.UNKNOWN:
                return False
        assert_never(self)


_C = CoordinatorState
OPEN_STATES = frozenset(state for state in CoordinatorState if state.is_open)


@dataclass(frozen=True)
class TransactionDescription:
    """One transactional id as DescribeTransactions shows it."""

    transactional_id: str
    coordinator_state: CoordinatorState
    state: PreparedTxnState
    timeout_ms: int
    start_time_ms: int
    partitions: frozenset[TopicPartition]

    @property
    def is_open(self) -> bool:
        """True while it holds back readers."""
        return self.coordinator_state.is_open

    @property
    def is_two_phase(self) -> bool:
        """True when the broker never aborts it by itself (KIP-939)."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    def time_left_ms(self, now_ms: int) -> int:
        """Milliseconds until the broker aborts it by itself; negative when overdue. Means nothing in two phases."""
        return self.start_time_ms + self.timeout_ms - now_ms


class Marker(str, Enum):
    """What a partition's log shows behind a transaction's last record."""

    COMMIT = "commit"
    ABORT = "abort"
    #: no control record of that producer id yet: the transaction is open there
    MISSING = "missing"
    #: the log does not reach back far enough, or the topic is another one now
    UNREADABLE = "unreadable"
    #: compaction took the transaction's records, and a control record that follows may be a later transaction's. It was
    #: ended: from the first record of an open transaction on nothing is compacted
    COMPACTED = "compacted away"
    COMPACTED_THEN_COMMIT = "compacted away, a commit marker follows"
    COMPACTED_THEN_ABORT = "compacted away, an abort marker follows"
    #: it was ended, the log was read from its last record to behind its end, and there is no marker
    MISSING_FOR_GOOD = "missing for good"

    @property
    def tells(self) -> bool:
        """Whether it says what became of the transaction there, or will; what tells nothing stays so."""
        match self:
            case Marker.COMMIT | Marker.ABORT | Marker.MISSING:
                return True
            case Marker.UNREADABLE | Marker.MISSING_FOR_GOOD | Marker.COMPACTED:
                return False
            case Marker.COMPACTED_THEN_COMMIT | Marker.COMPACTED_THEN_ABORT:
                return False
        assert_never(self)

    @property
    def is_compacted(self) -> bool:
        """Whether compaction took the transaction's own records."""
        match self:
            case Marker.COMPACTED | Marker.COMPACTED_THEN_COMMIT | Marker.COMPACTED_THEN_ABORT:
                return True
            case Marker.COMMIT | Marker.ABORT | Marker.MISSING | Marker.UNREADABLE | Marker.MISSING_FOR_GOOD:
                return False
        assert_never(self)

    @property
    def may_be_commit(self) -> bool:
        """Whether a commit marker is there, be it this transaction's for certain or not."""
        match self:
            case Marker.COMMIT | Marker.COMPACTED_THEN_COMMIT:
                return True
            case Marker.ABORT | Marker.MISSING | Marker.UNREADABLE | Marker.MISSING_FOR_GOOD:
                return False
            case Marker.COMPACTED | Marker.COMPACTED_THEN_ABORT:
                return False
        assert_never(self)


class Outcome(str, Enum):
    """What happened to a transaction as a whole."""

    COMMITTED = "committed"
    #: of a transaction that was not decided to be committed
    ABORTED = "aborted"
    OPEN = "open"
    IN_DOUBT = "in doubt"
    #: aborted, by the broker's timeout or by a hand, although the decision was commit: to be repaired
    #: (rule: repair-replaces-lost-row)
    LOST = "lost"
    #: lost, and replaced by a repair, which entered the decision in its place
    SUPERSEDED = "superseded"

    @property
    def is_final(self) -> bool:
        """Never judged again: the markers were seen, and what happens to the log later takes nothing back."""
        match self:
            case Outcome.COMMITTED | Outcome.LOST | Outcome.SUPERSEDED:
                return True
            case Outcome.ABORTED | Outcome.OPEN | Outcome.IN_DOUBT:
                return False
        assert_never(self)

    @property
    def is_done(self) -> bool:
        """Of a decided transaction: its load is done with it (rule: committed-is-verified)."""
        match self:
            case Outcome.COMMITTED | Outcome.SUPERSEDED:
                return True
            case Outcome.ABORTED | Outcome.OPEN | Outcome.IN_DOUBT | Outcome.LOST:
                return False
        assert_never(self)


FINAL = frozenset(outcome for outcome in Outcome if outcome.is_final)
DONE = frozenset(outcome for outcome in Outcome if outcome.is_done)


def judge(markers: Iterable[Marker]) -> Outcome:
    """One outcome from the evidence of all partitions of a transaction.

    All COMMIT: committed. All ABORT: aborted (called lost where the decision was commit). Some not there yet, the
    others alike: open. Anything mixed, unreadable or compacted away: in doubt, stop for a person. No partition at all
    is in doubt too: a transaction without evidence is never reported done.
    """
    seen = set(markers)
    if not all(marker.tells for marker in seen) or {Marker.COMMIT, Marker.ABORT} <= seen:
        return Outcome.IN_DOUBT
    if Marker.MISSING in seen:
        return Outcome.OPEN
    if seen == {Marker.COMMIT}:
        return Outcome.COMMITTED
    return Outcome.ABORTED if seen == {Marker.ABORT} else Outcome.IN_DOUBT


def judge_decided(markers: Iterable[Marker]) -> Outcome:
    """The same of a transaction that is decided to be committed: aborted means lost."""
    outcome = judge(markers)
    return Outcome.LOST if outcome is Outcome.ABORTED else outcome
