"""What the partitions' logs say of the transactions of a load, and what a person is told where they do not tell.

Rules: log-is-the-evidence, doubt-stops-for-a-person.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, assert_never

from airflow_kafka_eos.errors import InDoubtError, KafkaEosError
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.records.scan import COMPACTION, Sought, may_be_gone
from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.guards.coordinator_watch import finished
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import Marker, TopicPartition

_FOLLOWING = {Marker.COMPACTED_THEN_COMMIT: Marker.COMMIT, Marker.COMPACTED_THEN_ABORT: Marker.ABORT}
#: What an error has room for.
_SHOWN = 5
_REMEDY = (
    "Nothing more is touched. Compare the topic with what `airflow-kafka-eos loads show` says. When the "
    "logs are readable again, `airflow-kafka-eos loads recover` looks at everything anew; `loads give-up` leaves "
    "it as it is, and the same data can be loaded under a load_key of its own"
)
_REMEDY_COMPACTED = (
    "Nothing more is touched: a load that was committed, and whose keys were written again since, looks like an "
    "aborted one. Compare the topic with what `airflow-kafka-eos loads show` says. If it has every key of the "
    "load, as the load wrote it or newer, nothing is missing; if not, load the same data under a load_key of its "
    "own. Either way `airflow-kafka-eos loads give-up` closes this load"
)


class Judged(NamedTuple):
    """By transactional id, the markers of those whose partitions could all be read; ``error``: why others could not."""

    markers: dict[str, dict[TopicPartition, Marker]]
    error: KafkaEosError | None


def evidence_of(
    session: Session, rows: Iterable[TransactionRow], decided: AttemptRow | None = None
) -> Judged:
    """What the logs show behind the last records of prepared transactions, each partition read once.

    :param decided: their attempt, if it is decided to be committed. Decide has seen them open, so they ended behind
        prepare, and their markers may be too young to be gone: then what follows records that are compacted away is
        their own.
    """
    result = Judged({}, None)
    for topic_ids, group in _by_topic_ids(rows):
        sought = {t.transaction.transactional_id: _sought(t) for t in group}
        by_partition: dict[TopicPartition, list[Sought]] = defaultdict(list)
        for of in sought.values():
            for tp, one in of.items():
                by_partition[tp].append(one)
        found, error = session.partitions.markers_of(by_partition, topic_ids)
        for name, of in sought.items():
            markers = {tp: found[tp][one] for tp, one in of.items() if one in found[tp]}
            if len(markers) == len(of):
                result.markers[name] = markers
        result = Judged(result.markers, result.error or error)
    if decided is not None and decided.prepared_at is not None:
        _believe_the_young(session, result.markers.values(), datetime.fromisoformat(decided.prepared_at))
    return result


def evidence(
    session: Session, row: TransactionRow, decided: AttemptRow | None = None
) -> dict[TopicPartition, Marker]:
    """The same of one transaction.

    :raises KafkaEosError: a partition could not be read.
    """
    found, error = evidence_of(session, [row], decided)
    if error is not None:
        raise error
    return found[row.transaction.transactional_id]


def _sought(row: TransactionRow) -> dict[TopicPartition, Sought]:
    state, first = row.transaction.state, row.first_offsets
    return {
        tp: Sought(state.producer_id, state.producer_epoch, last, first[tp])
        for tp, last in row.last_offsets.items()
    }


def _by_topic_ids(rows: Iterable[TransactionRow]) -> list[tuple[Mapping[str, str], list[TransactionRow]]]:
    """Rows that agree about the topics' ids; an attempt's all do, whatever topics each has."""
    groups: list[tuple[dict[str, str], list[TransactionRow]]] = []
    for row in rows:
        for known, group in groups:
            if all(known.get(topic, topic_id) == topic_id for topic, topic_id in row.topic_ids.items()):
                known.update(row.topic_ids)
                group.append(row)
                break
        else:
            groups.append((dict(row.topic_ids), [row]))
    return list(groups)


def _believe_the_young(
    session: Session, found: Iterable[dict[TopicPartition, Marker]], open_at: datetime
) -> None:
    """Where the transaction's own marker cannot have been taken out yet, the first one that is there is its own."""
    doubtful = [(of, tp) for of in found for tp, marker in of.items() if marker in _FOLLOWING]
    if not doubtful:
        return
    configs = session.partitions.topic_config({tp.topic for _, tp in doubtful}, COMPACTION)
    for of, tp in doubtful:
        if not may_be_gone(configs.get(tp.topic, {}), open_at.timestamp() * 1000, time.time() * 1000):
            of[tp] = _FOLLOWING[of[tp]]


def missing_for_good(
    session: Session, rows: Iterable[TransactionRow]
) -> dict[str, dict[TopicPartition, Marker]]:
    """Of transactions that look open, those that are not, and have no marker all the same: by transactional id.

    Their coordinators have nothing more to do, so no marker comes. And readers are past their last records: the leader
    has ended them, and whatever ended them is below the high watermark. Only then the log is read again.

    :raises TransientError: a broker does not answer.
    """
    known = {t.transaction.transactional_id: t for t in rows}
    is_finished = finished(session, known)
    if not is_finished:
        return {}
    late = [known[name] for name in is_finished]
    stable = session.partitions.last_stable_offsets(w.topic_partition for t in late for w in t.writes)
    found, _ = evidence_of(session, late)
    gone = {}
    for name, markers in found.items():
        last = known[name].last_offsets
        told = {
            tp: Marker.MISSING_FOR_GOOD if marker is Marker.MISSING and stable[tp] > last[tp] else marker
            for tp, marker in markers.items()
        }
        if Marker.MISSING_FOR_GOOD in told.values():
            gone[name] = told
    return gone


def doubt(
    session: Session,
    load: LoadIdentity,
    number: int,
    found: Mapping[str, Mapping[TopicPartition, Marker]],
    rows: Mapping[str, TransactionRow],
    answers: Mapping[str, EndAnswer],
) -> InDoubtError:
    """The whole story of transactions in doubt.

    :param found: by transactional id, their markers; at least one transaction.
    :param rows: by transactional id, as the ledger has them.
    :param answers: to the EndTxn of just now; of those that were answered.
    """
    name, markers = next(iter(found.items()))
    row = rows[name]
    what = (
        f"the logs of transaction {row.transaction} do not show one outcome: "
        f"{_story(row, markers)}{_reach(session, markers)}{_hint(session, name, answers.get(name))}"
    )
    if len(found) > 1:
        what += f"; and {len(found) - 1} more"
    is_compacted = any(m.is_compacted or m is Marker.MISSING_FOR_GOOD for of in found.values() for m in of.values())
    return InDoubtError(
        what,
        remedy=_REMEDY_COMPACTED if is_compacted else _REMEDY,
        load=str(load),
        attempt=number,
        transactional_id=name,
    )


def _story(row: TransactionRow, markers: Mapping[TopicPartition, Marker]) -> str:
    """What each partition shows, what tells nothing first."""
    first, last = row.first_offsets, row.last_offsets
    told = (Marker.COMMIT, Marker.ABORT)
    parts = [
        f"{tp} (offsets {first[tp]} to {last[tp]}) {_why(marker)}"
        for tp, marker in sorted(markers.items(), key=lambda item: (item[1] in told, item[0]))
    ]
    return ", ".join(parts[:_SHOWN]) + (f", and {len(parts) - _SHOWN} more partitions" if parts[_SHOWN:] else "")


def _why(marker: Marker) -> str:
    match marker:
        case Marker.COMMIT | Marker.ABORT:
            return str(marker.value)
        case Marker.MISSING:
            return "open"
        case Marker.MISSING_FOR_GOOD:
            return "its leader has ended it and readers are past it, but its log has no end marker"
        case Marker.UNREADABLE:
            return "unreadable: its log does not have its last record any more, or has something else in its place"
        case Marker.COMPACTED:
            return "compaction took its records, and its end marker with them or before anybody looked"
        case Marker.COMPACTED_THEN_COMMIT | Marker.COMPACTED_THEN_ABORT:
            kind = "a commit" if marker is Marker.COMPACTED_THEN_COMMIT else "an abort"
            return (
                f"compaction took its records; {kind} marker of its producer follows, which may be a later "
                "transaction's"
            )
    assert_never(marker)


def _reach(session: Session, markers: Mapping[TopicPartition, Marker]) -> str:
    """How far the logs go, for people."""
    untold = sorted(tp for tp, m in markers.items() if m not in (Marker.COMMIT, Marker.ABORT))[:_SHOWN]
    if not untold:
        return ""
    try:
        starts = session.partitions.log_start_offsets(untold)
        ends = session.partitions.end_offsets(untold)
        stable = session.partitions.last_stable_offsets(untold)
    except KafkaEosError:
        return ""
    parts = [f"{tp} goes from {starts[tp]} to {ends[tp]}, readers to {stable[tp]}" for tp in untold]
    return f"; the log of {', '.join(parts)}"


def _hint(session: Session, name: str, answer: EndAnswer | None) -> str:
    """The coordinator's word, for people; it is never evidence (rule: log-is-the-evidence)."""
    answered = "" if answer is None else f"; EndTxn (commit) was answered {answer.value}"
    try:
        seen = session.coordinator.describe([name]).get(name)
    except KafkaEosError:
        return answered
    if seen is None:
        return f"{answered}; its coordinator does not know it any more"
    return f"{answered}; its coordinator shows {seen.coordinator_state.value} {seen.state}"
