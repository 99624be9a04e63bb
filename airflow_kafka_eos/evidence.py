"""What really happened to a transaction, judged by the partitions' logs alone (rule: log-is-the-evidence).

Per partition the evidence is the first control record of the transaction's producer id behind its last record, as long
as it cannot be a later transaction's: :class:`airflow_kafka_eos.kafka.log_scan.LogScan`.

Error codes and the coordinator's present state are hints; they never become an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


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


COMPACTED = frozenset({Marker.COMPACTED, Marker.COMPACTED_THEN_COMMIT, Marker.COMPACTED_THEN_ABORT})
#: What tells nothing, whatever is read again.
UNTOLD = COMPACTED | {Marker.UNREADABLE, Marker.MISSING_FOR_GOOD}


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


#: What is never judged again: the markers were seen, and what happens to the log later takes nothing back.
FINAL = frozenset({Outcome.COMMITTED, Outcome.LOST, Outcome.SUPERSEDED})
#: Outcomes of a decided transaction with which its load is done (rule: committed-is-verified).
DONE = frozenset({Outcome.COMMITTED, Outcome.SUPERSEDED})


def judge(markers: Iterable[Marker]) -> Outcome:
    """One outcome from the evidence of all partitions of a transaction.

    All COMMIT: committed. All ABORT: aborted (called lost where the decision was commit). Some not there yet, the
    others alike: open. Anything mixed, unreadable or compacted away: in doubt, stop for a person. No partition at all
    is in doubt too: a transaction without evidence is never reported done.
    """
    seen = set(markers)
    if not seen or seen & UNTOLD or {Marker.COMMIT, Marker.ABORT} <= seen:
        return Outcome.IN_DOUBT
    if Marker.MISSING in seen:
        return Outcome.OPEN
    return Outcome.COMMITTED if seen == {Marker.COMMIT} else Outcome.ABORTED


def judge_decided(markers: Iterable[Marker]) -> Outcome:
    """The same of a transaction that is decided to be committed: aborted means lost."""
    outcome = judge(markers)
    return Outcome.LOST if outcome is Outcome.ABORTED else outcome
