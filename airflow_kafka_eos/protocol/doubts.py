"""What a person is told of transactions whose logs do not tell what became of them (rule: doubt-stops-for-a-person)."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kafka_eos.errors import InDoubtError, KafkaEosError
from airflow_kafka_eos.evidence import COMPACTED, Marker
from airflow_kafka_eos.kafka.end_txn import EndAnswer
from airflow_kafka_eos.ledger.rows import TransactionRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.judging import first_offsets, last_offsets
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import TopicPartition

#: What an error has room for.
_SHOWN = 5

_WHY = {
    Marker.MISSING_FOR_GOOD: "its leader has ended it and readers are past it, but its log has no end marker",
    Marker.COMPACTED: "compaction took its records, and its end marker with them or before anybody looked",
    Marker.COMPACTED_THEN_COMMIT: "compaction took its records; a commit marker of its producer follows, which may be "
    "a later transaction's",
    Marker.COMPACTED_THEN_ABORT: "compaction took its records; an abort marker of its producer follows, which may be "
    "a later transaction's",
    Marker.UNREADABLE: "unreadable: its log does not have its last record any more, or has another story",
    Marker.MISSING: "open",
}
_REMEDY = (
    "Nothing more is touched. Compare the topic with what `airflow-kafka-eos loads show` says. When the "
    "logs are readable again, `airflow-kafka-eos loads recover` looks at everything anew; `loads give-up` leaves "
    "it as it is, and the same data can be loaded under a load_key of its own"
)
_REMEDY_COMPACTED = (
    "Nothing more is touched: committed, and written again since under the same keys, looks like aborted. Compare the "
    "topic with what `airflow-kafka-eos loads show` says. If it has every key of the load, as the load wrote it or "
    "newer, nothing is missing; if not, load the same data under a load_key of its own. Either way `airflow-kafka-eos "
    "loads give-up` closes this load"
)


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
        f"the logs of transaction {row.transaction} do not tell one story: {_story(row, markers)}"
        f"{_reach(session, markers)}{_hint(session, name, answers.get(name))}"
    )
    if len(found) > 1:
        what += f"; and so with {len(found) - 1} more"
    is_compacted = any(m in COMPACTED or m is Marker.MISSING_FOR_GOOD for of in found.values() for m in of.values())
    return InDoubtError(
        what,
        remedy=_REMEDY_COMPACTED if is_compacted else _REMEDY,
        load=str(load),
        attempt=number,
        transactional_id=name,
    )


def _story(row: TransactionRow, markers: Mapping[TopicPartition, Marker]) -> str:
    """What each partition shows, what tells nothing first."""
    first, last = first_offsets(row), last_offsets(row)
    told = (Marker.COMMIT, Marker.ABORT)
    parts = [
        f"{tp} (offsets {first[tp]} to {last[tp]}) {_WHY.get(marker, marker.value)}"
        for tp, marker in sorted(markers.items(), key=lambda item: (item[1] in told, item[0]))
    ]
    return ", ".join(parts[:_SHOWN]) + (f", and {len(parts) - _SHOWN} more partitions" if parts[_SHOWN:] else "")


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
