"""Whether readers can see a committed load: the last stable offset against its last record.

Rule: loaded-is-visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from airflow_kafka_eos.errors import NotFinishedError, TopicError, TransientError, UndecidableError
from airflow_kafka_eos.kafka.admin.partitions import LsoBlocker
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import STAYS_GIVEN_UP, LoadIdentity, LoadState
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import decided_attempt
from airflow_kafka_eos.transaction import TopicPartition


@dataclass(frozen=True)
class Lag:
    """A partition where read_committed readers do not see the load's last record yet, and who holds them back."""

    partition: TopicPartition
    last_stable_offset: int
    needed: int
    blockers: tuple[LsoBlocker, ...]

    def __str__(self) -> str:
        names = ", ".join(
            h.transactional_id
            or f"a transaction of producer {h.producer_id}:{h.producer_epoch} (its id is not shown: another "
            f"application's, or hanging; `airflow-kafka-eos transactions hanging --topic {self.partition.topic} "
            "--running-longer-than 0s`)"
            for h in self.blockers
        )
        return (
            f"{self.partition}: last stable offset {self.last_stable_offset} of {self.needed}, held back by "
            f"{names or 'a transaction that this login may not see, or none any more'}"
        )


def lags(session: Session, load: LoadIdentity) -> list[Lag]:
    """Partitions of a decided load that readers do not see to its end yet; empty when all is visible.

    Only waits, never ends anything: whoever holds the last stable offset back may be another load that is about to
    commit, and it does not wait for us in turn.

    :raises UndecidableError: the load has no commit decision, or was given up.
    :raises OtherClusterError: it was written to another cluster: what readers see here says nothing about it
        (rule: one-cluster-per-attempt).
    :raises NotFinishedError: it is decided, not COMMITTED yet; a last stable offset alone proves nothing, for an
        aborted transaction lets it pass too.
    :raises TopicError: a topic was deleted since, maybe made anew: readers have nothing of the load there, whatever
        others have written to the offsets that it had. Not known of a load that was pruned.
    """
    row = decided_attempt(session, load)
    known = session.ledger.load(load)
    assert known is not None  # it has an attempt
    match known.state:
        case LoadState.COMMITTED:
            pass
        case LoadState.GIVEN_UP:
            raise UndecidableError(
                f"the load was {known.reason or 'given up'}",
                remedy=STAYS_GIVEN_UP,
                load=str(load),
                attempt=row.number,
            )
        case (
            LoadState.PREPARING | LoadState.PREPARED | LoadState.ABORTING | LoadState.ABORTED
            | LoadState.COMMITTING | LoadState.REPAIRING | LoadState.IN_DOUBT
        ):
            raise NotFinishedError(
                f"the load is {known.state.value}, not COMMITTED",
                remedy="Clear commit, or wait for its retry",
                load=str(load),
                attempt=row.number,
            )
        case _:
            assert_never(known.state)
    check_cluster(session, [row], closed_too=True)
    wrote = session.ledger.summary(load, row.number)
    try:
        late = behind(session, wrote.last_offsets)
    except TransientError:
        _check_topics(session, row, wrote.topic_ids)  # what is gone has no leader that could answer
        raise
    _check_topics(session, row, wrote.topic_ids)  # behind the offsets: they were of these topics
    return late


def _check_topics(session: Session, row: AttemptRow, then: Mapping[str, str]) -> None:
    try:
        now = session.partitions.topic_info(then)
        gone = {topic for topic, topic_id in then.items() if now[topic].topic_id != topic_id}
    except TopicError:
        gone = {topic for topic, topic_id in then.items() if _id_of(session, topic) != topic_id}
    if not gone:
        return
    kept = ", ".join(sorted(set(then) - gone))
    if kept:
        once_more = (
            f"A reload would write {kept} once more, too. So give what is missing to a load of its own, with another "
            "load_name, that writes to nothing else"
        )
    else:
        once_more = (
            "To load it once more, set on_committed='reload', and clear all tasks of the group, with begin; take it "
            "out again once they are through, for each clear loads anew. SQL of a dual write runs once more, too"
        )
    raise TopicError(
        f"topic {', '.join(sorted(gone))} was deleted, or deleted and created again: the load was committed before, "
        "and readers see nothing of it there",
        remedy="Nothing is written again by itself. Was the topic made anew on purpose, and has it what it should? "
        f"Then mark this task as success. If not, create the topic if it is missing. {once_more}",
        load=str(row.load),
        attempt=row.number,
    )


def _id_of(session: Session, topic: str) -> str | None:
    try:
        return session.partitions.topic_info([topic])[topic].topic_id
    except TopicError:
        return None


def behind(session: Session, last_offsets: Mapping[TopicPartition, int]) -> list[Lag]:
    """Partitions whose last stable offset has not passed the record at that offset."""
    needed = {tp: last + 1 for tp, last in last_offsets.items()}
    if not needed:
        return []
    stable = session.partitions.last_stable_offsets(sorted(needed))
    late = [tp for tp, offset in sorted(needed.items()) if stable[tp] < offset]
    blockers = session.partitions.lso_blockers(late) if late else {}
    return [Lag(tp, stable[tp], needed[tp], tuple(blockers[tp])) for tp in late]


def arrival_of(session: Session, load: LoadIdentity) -> dict[str, Any]:
    """What a committed load has put into its topics, as the ledger has it; JSON values.

    What a repair has replaced does not count. Offsets are the first and the last of the load in a partition; records of
    others, markers and aborted records may lie between them.

    :returns: ``load``, ``attempt``, ``by`` (who prepared it), ``decided_at``, ``records``, ``repaired`` (transactions
        that replace lost ones), and by topic ``topics``: ``records``, ``bytes`` (before compression), ``offsets``
        (partition, as a text: [first, last]).
    :raises UndecidableError: the load has no commit decision.
    """
    row = decided_attempt(session, load)
    found = session.ledger.summary(load, row.number)
    return {
        "load": str(load),
        "attempt": row.number,
        "by": row.responsible,
        "decided_at": row.decided_at,
        "records": row.records,
        "repaired": found.repaired,
        "topics": dict(found.topics),
    }
