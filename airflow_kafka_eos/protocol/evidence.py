"""What the partitions' logs say of the transactions of a load, and what a person is told where they do not tell.

Rules: log-is-the-evidence, doubt-stops-for-a-person.

Where a topic's list of aborted transactions may be believed, it is asked in place of the log (docs/adr/0028). What
rests on the list alone counts only where nothing contradicts it: not the coordinator, nor the records that the leader
has counted. Else the log is gone through.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, assert_never

from airflow_kafka_eos.errors import InDoubtError, KafkaEosError
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.admin.find_markers import Evidence, Progress
from airflow_kafka_eos.kafka.records.scan import COMPACTION, Sought, may_be_gone
from airflow_kafka_eos.kafka.records.transaction_index import SETTINGS, may_be_believed
from airflow_kafka_eos.ledger.rows import AttemptRow, TransactionRow
from airflow_kafka_eos.load import GIVE_UP, WRITE, LoadIdentity
from airflow_kafka_eos.protocol.guards.coordinator_watch import finished
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import (
    SEQUENCE_MODULUS,
    CoordinatorState,
    Marker,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

_FOLLOWING = {Marker.COMPACTED_THEN_COMMIT: Marker.COMMIT, Marker.COMPACTED_THEN_ABORT: Marker.ABORT}
#: For an answer that is good to know before EndTxn is sent.
_PATIENCE_S = 2.0
#: What an error has room for.
_SHOWN = 5
_REMEDY = (
    "Nothing more is touched. `airflow-kafka-eos loads show NAME KEY` has what is known. When the logs are readable "
    f"again, `airflow-kafka-eos loads recover NAME KEY` looks at everything anew. Else {GIVE_UP}; then {WRITE}"
)
_REMEDY_COMPACTED = (
    "Nothing more is touched: a load that was committed, and whose keys were written again since, looks like an "
    f"aborted one. So {GIVE_UP}. If it has every key of the load, as the load wrote it or newer, nothing is missing; "
    f"else {WRITE}. `airflow-kafka-eos loads show NAME KEY` has the load's partitions and offsets"
)


class Judged(NamedTuple):
    """By transactional id, the markers of those whose partitions could all be read; ``error``: why others could not."""

    markers: dict[str, dict[TopicPartition, Marker]]
    error: KafkaEosError | None


def evidence_of(
    session: Session,
    rows: Iterable[TransactionRow],
    decided: AttemptRow | None = None,
    *,
    answers: Mapping[str, EndAnswer] | None = None,
    progress: Progress | None = None,
    ends: Mapping[TopicPartition, int] | None = None,
    topic_config: Mapping[str, Mapping[str, str]] | None = None,
) -> Judged:
    """What the logs show behind the last records of prepared transactions, each partition read once.

    :param decided: their attempt, if it is decided to be committed. Decide has seen them open, so they ended behind
        prepare, and their markers may be too young to be gone: then what follows records that are compacted away is
        their own. And they stand behind the end offsets that were recorded with the decision.
    :param answers: to an EndTxn (commit) of just now, by transactional id; hints.
    :param progress: of earlier looks of the same process; None: there are none, and no later ones.
    :param ends: those end offsets, which never change; None: the ledger is asked.
    :param topic_config: the topics' settings as they were a moment ago; None: brokers are asked.
    """
    result = Judged({}, None)
    known = progress or Progress(repeats=False)
    if ends is None:
        ends = {} if decided is None else session.ledger.end_offsets(decided.load, decided.number)
    for topic_ids, group in _by_topic_ids(rows):
        sought = {t.transaction.transactional_id: _sought(t) for t in group}
        by_partition: dict[TopicPartition, list[Sought]] = defaultdict(list)
        for of in sought.values():
            for tp, one in of.items():
                by_partition[tp].append(one)
                if tp in ends:
                    known.behind.setdefault((tp, one), ends[tp])
        seen = session.partitions.markers_of(by_partition, topic_ids, _indexed(session, topic_ids, topic_config), known)
        found, error = _cross_checked(session, group, topic_ids, seen, answers or {}, known)
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


def _indexed(
    session: Session, topics: Iterable[str], config: Mapping[str, Mapping[str, str]] | None
) -> list[str]:
    """Those whose lists of aborted transactions may be believed."""
    if not session.reads_index:
        return []
    shown = session.partitions.shown_config(topics, SETTINGS) if config is None else config
    features = session.partitions.wire.features()
    return [topic for topic in topics if may_be_believed(shown.get(topic, {}), features)]


def _cross_checked(
    session: Session,
    rows: Iterable[TransactionRow],
    topic_ids: Mapping[str, str],
    seen: Evidence,
    answers: Mapping[str, EndAnswer],
    known: Progress,
) -> tuple[Mapping[TopicPartition, Mapping[Sought, Marker]], KafkaEosError | None]:
    """What rests on a list of aborted transactions alone, held against what else is known; contradicted, it is read."""
    told = [t for t in rows if any((tp, one) in seen.by_index for tp, one in _sought(t).items())]
    if not told:
        return seen.markers, seen.error
    words = _words(session, told, answers)
    counted, error = _records_counted(session, {tp for tp, _ in seen.by_index})
    doubtful: dict[TopicPartition, list[Sought]] = defaultdict(list)
    for t in told:
        records = {w.topic_partition: w.records for w in t.writes}
        for tp, one in _sought(t).items():
            if (tp, one) in seen.by_index and is_contradicted(
                seen.markers[tp][one],
                words.get(t.transaction.transactional_id),
                counted.get((tp, t.transaction.state), known.counted.get((tp, one))),
                records[tp],
            ):
                doubtful[tp].append(one)
    if not doubtful:
        return seen.markers, seen.error or error
    read, failed = session.partitions.markers_of(doubtful, topic_ids)[:2]
    merged = {
        tp: {one: m for one, m in of.items() if one not in doubtful.get(tp, ())} | read.get(tp, {})
        for tp, of in seen.markers.items()
    }
    return merged, seen.error or error or failed


def is_contradicted(told: Marker, word: Marker | None, counted: int | None, records: int) -> bool:
    """Whether what a list of aborted transactions tells has to be looked up in the log. No I/O.

    That there is no entry is no proof where the list may be lost: a commit wants the coordinator's word for it. An
    entry is one, unless the coordinator says the opposite. And the list shows no record that was written behind the
    manifest.

    :param word: of the coordinator; None: it has none.
    :param counted: records that the leader has counted of this producer id and epoch, modulo 2**31, by now or before
        the end; None: it did not tell. An end that raises the epoch makes it forget, and so does time.
    :param records: that the manifest has.
    """
    if counted is not None and counted != records % SEQUENCE_MODULUS:
        return True
    return word is not told if told is Marker.COMMIT else word is Marker.COMMIT


def look_before_ending(session: Session, rows: Iterable[TransactionRow], progress: Progress) -> None:
    """Note what leaders show of transactions that are about to be ended: how many records, and where the log ends.

    Decide has asked the same. Where that is some time ago, others have written since, and the markers will stand behind
    all of it: now they stand behind these ends. Asked once, and nobody waits for whoever does not answer.
    """
    progress.is_looked_at = True
    wanted = [(tp, one, t) for t in rows for tp, one in _sought(t).items()]
    try:
        shown = session.partitions.standing({tp for tp, _, _ in wanted}, _PATIENCE_S)
    except KafkaEosError:
        return
    for tp, one, t in wanted:
        for p in shown[tp].producers if tp in shown else ():
            if PreparedTxnState(p.producer_id, p.producer_epoch) != t.transaction.state or p.last_sequence < 0:
                continue
            counted = (p.last_sequence + 1) % SEQUENCE_MODULUS
            progress.counted[tp, one] = counted
            records = sum(w.records for w in t.writes if w.topic_partition == tp)
            if p.txn_start_offset == one.first_offset and counted == records % SEQUENCE_MODULUS:
                progress.behind[tp, one] = max(shown[tp].end_offset, progress.behind.get((tp, one), 0))


def _words(
    session: Session, rows: Iterable[TransactionRow], answers: Mapping[str, EndAnswer]
) -> dict[str, Marker]:
    """How coordinators say that transactions ended, by transactional id; of those that they tell."""
    by_name = {t.transaction.transactional_id: t for t in rows}
    words = {name: Marker.COMMIT for name in by_name if answers.get(name) is EndAnswer.DONE}
    try:
        described = session.coordinator.describe(by_name.keys() - words.keys()) if len(words) < len(by_name) else {}
    except KafkaEosError:
        return words
    raises = session.partitions.wire.transaction_version() >= 2
    for name, seen in described.items():
        word = word_of(seen, by_name[name].transaction.state, raises=raises)
        if word is not None:
            words[name] = word
    return words


def word_of(seen: TransactionDescription, state: PreparedTxnState, *, raises: bool) -> Marker | None:
    """How a coordinator says that a transaction ended; None where what it shows may be another one's. No I/O.

    :param raises: every end raises the epoch (transaction version 2). Else a raised one is a later transaction's, or an
        abort's: by timeout or fencing, which raise it by one, on Kafka 4.0.0 by two.
    """
    if seen.state.producer_id != state.producer_id:
        return None
    raised = seen.state.producer_epoch - state.producer_epoch
    match seen.coordinator_state:
        case CoordinatorState.PREPARE_COMMIT | CoordinatorState.COMPLETE_COMMIT:
            return Marker.COMMIT if raised in ((0, 1) if raises else (0,)) else None
        case CoordinatorState.PREPARE_ABORT | CoordinatorState.COMPLETE_ABORT | CoordinatorState.PREPARE_EPOCH_FENCE:
            return Marker.ABORT if raised in (0, 1, 2) else None
        case CoordinatorState.EMPTY | CoordinatorState.ONGOING | CoordinatorState.DEAD | CoordinatorState.UNKNOWN:
            return None
    assert_never(seen.coordinator_state)


def _records_counted(
    session: Session, tps: Iterable[TopicPartition]
) -> tuple[dict[tuple[TopicPartition, PreparedTxnState], int], KafkaEosError | None]:
    """How many records leaders have counted of each producer id and epoch that they remember."""
    try:
        shown = session.partitions.producers(tps)
    except KafkaEosError as e:
        return {}, e
    return {
        (tp, PreparedTxnState(p.producer_id, p.producer_epoch)): (p.last_sequence + 1) % SEQUENCE_MODULUS
        for tp, of in shown.items()
        for p in of
        if p.last_sequence >= 0
    }, None


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
    session: Session, rows: Iterable[TransactionRow], progress: Progress | None = None
) -> dict[str, dict[TopicPartition, Marker]]:
    """Of transactions that look open, those that are not, and have no marker all the same: by transactional id.

    Their coordinators have nothing more to do, so no marker comes. And readers are past their last records: the leader
    has ended them, and whatever ended them is below the high watermark. Only then the log is read again.

    :param progress: see :func:`evidence_of`.
    :raises TransientError: a broker does not answer.
    """
    known = {t.transaction.transactional_id: t for t in rows}
    is_finished = finished(session, known)
    if not is_finished:
        return {}
    late = [known[name] for name in is_finished]
    stable = session.partitions.last_stable_offsets(w.topic_partition for t in late for w in t.writes)
    found, _ = evidence_of(session, late, progress=progress)
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
