"""Prepare again what was lost after the decision and is not in the log any more (rule: only-equal-records; ADR 14).

The load's application runs once more, and writes the lost Spark partitions only, each under the number of a repair.
What has the same counts and digests takes the lost transaction's place; anything else enters nothing, and stops the
load for a person. As in every repair the ledger comes first (rule: decide-before-kafka), and transactions have a
timeout, two-phase commit or not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from airflow_kafka_eos.errors import (
    InDoubtError,
    KafkaEosError,
    NotFinishedError,
    RecordsGoneError,
    TooLargeToCopyError,
    TopicError,
    UndecidableError,
)
from airflow_kafka_eos.ledger.rows import AttemptRow, RepairRow, RepairState, TransactionRow
from airflow_kafka_eos.load import OR_GIVE_UP, LoadState, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry, PartitionWrites
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.repair.copy import allowed_ms, end_abandoned
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import commit, commit_pass
from airflow_kafka_eos.protocol.stages.decide import observe, problems
from airflow_kafka_eos.transaction import Outcome, TopicPartition

log = logging.getLogger(__name__)

#: What a transaction must have left before the broker's timeout when it enters the decision; EndTxn follows at once.
MARGIN_S = 5.0


@dataclass(frozen=True)
class LostPart:
    """A lost transaction whose records are gone, and the repair that was opened for it."""

    lost: TransactionRow
    repair: RepairRow

    @property
    def spark_partition(self) -> int:
        assert self.lost.spark_partition is not None  # scope task
        return self.lost.spark_partition


@dataclass(frozen=True)
class Repreparation:
    """What one application is to prepare again.

    :param attempt: the decided one.
    :param timeout_ms: of its transactions, within what every broker allows.
    """

    attempt: AttemptRow
    ref: AttemptRef
    parts: tuple[LostPart, ...]
    timeout_ms: int


def open_repreparation(
    session: Session, row: AttemptRow, *, by: str, hold_time_ms: int, deadline_s: float = 300
) -> Repreparation | None:
    """Roll a decided load forward as far as the log allows, and open a repair for each Spark partition that is left.

    :param row: the decided attempt.
    :param by: who prepares, for the ledger.
    :param deadline_s: seconds, see :func:`~airflow_kafka_eos.protocol.stages.commit.commit`.
    :param hold_time_ms: what its transactions may have at least; see :func:`_timeout_ms`.
    :returns: None when there is nothing to prepare again: nothing is lost, or a person decides.
    :raises OtherClusterError: it was written to another cluster.
    :raises TransientError: not now; nothing is lost by that.
    """
    load = row.load
    repairing = (LoadState.REPAIRING, LoadState.IN_DOUBT)
    if session.ledger.state(load) not in repairing or row.scope is not TransactionScope.TASK:
        return None
    try:
        commit(session, load, deadline_s=deadline_s, by=by)
        return None
    except (RecordsGoneError, TooLargeToCopyError) as e:
        log.warning("%s: %s", load, e.message)
    except (InDoubtError, UndecidableError) as e:
        log.warning("%s is left to a person: %s", load, e)
        return None
    lost = [t for t in session.ledger.transactions(load, row.number) if t.outcome is Outcome.LOST]
    parts = tuple(
        LostPart(t, opened)
        for t in lost
        if (opened := session.ledger.open_repair(load, row.number, t.transaction.transactional_id, opened_by=by))
    )
    if not parts:
        return None  # others were faster
    return _of_parts(session, row, parts, hold_time_ms)


def opened_repreparation(
    session: Session, row: AttemptRow, numbers: Collection[int], *, hold_time_ms: int
) -> Repreparation | None:
    """What :func:`open_repreparation` has opened in another process; None where not all of it is open any more.

    :param numbers: of its repairs.
    """
    lost = {t.transaction.transactional_id: t for t in session.ledger.transactions(row.load, row.number)}
    parts = tuple(
        LostPart(lost[repair.lost_transactional_id], repair)
        for repair in session.ledger.repairs(row.load)
        if repair.attempt == row.number and repair.number in numbers and repair.state is RepairState.OPEN
    )
    return _of_parts(session, row, parts, hold_time_ms) if len(parts) == len(numbers) else None


def _of_parts(
    session: Session, row: AttemptRow, parts: tuple[LostPart, ...], hold_time_ms: int
) -> Repreparation:
    pairs = tuple((part.spark_partition, part.repair.number) for part in parts)
    ref = AttemptRef(row.load, session.ledger.ledger_id, min(number for _, number in pairs), None, pairs)
    return Repreparation(row, ref, parts, _timeout_ms(session, row, hold_time_ms))


def _timeout_ms(session: Session, row: AttemptRow, hold_time_ms: int) -> int:
    """Of its transactions: twice what prepare took before, or hold_time where that is more, as far as brokers allow.

    Says so at once where they allow less than prepare took.
    """
    took_ms = _prepare_took_ms(row)
    wanted = max(hold_time_ms, 2 * took_ms)
    allowed = allowed_ms(session)
    if allowed is None:  # what the load itself may have, at least where it was prepared in one phase
        return hold_time_ms
    if allowed < took_ms:
        log.warning(
            "%s: prepare took %g s, and the brokers let a transaction stay open for %g s: what is prepared again may "
            "be lost before all tasks are through. Raise transaction.max.timeout.ms to %d on every broker, and clear "
            "prepare then",
            row.load, took_ms / 1000, allowed / 1000, 2 * took_ms,
        )  # fmt: skip
    return min(wanted, allowed)


def _prepare_took_ms(row: AttemptRow) -> int:
    if row.submitted_at is None or row.prepared_at is None:
        return 0
    took = datetime.fromisoformat(row.prepared_at) - datetime.fromisoformat(row.submitted_at)
    return max(0, int(took.total_seconds() * 1000))


def adopt_all(session: Session, again: Repreparation, manifest: Manifest) -> None:
    """Let what was prepared again enter the decision, if it is what was lost, and have it committed.

    Nothing of it unless all digests are equal; then part by part, and what is adopted stays so whatever follows.

    :raises InDoubtError: it is not: the load is IN_DOUBT, and nothing of it is open any more.
    :raises UndecidableError: the broker does not confirm it (a timeout has passed), and the load stays REPAIRING; or
        the load was given up meanwhile.
    :raises NotFinishedError: cleanup has taken it for a dead one's; prepare may run again.
    :raises OtherClusterError: the session is of another cluster than the attempt; what was written ends by its timeout.
    """
    check_cluster(session, [again.attempt])
    load, number = again.attempt.load, again.attempt.number
    found = list(differences(again, manifest))
    if found:
        what = f"what was prepared again is not what was lost: {'; '.join(found)}"
        abandon_all(session, again, what, manifest)
        if not session.ledger.record_in_doubt(load, number, what):
            return  # COMMITTED: another repair has brought all of it
        raise InDoubtError(
            what,
            remedy="Nothing of it is visible; what is committed of the load stays. The source, the job or the order of "
            f"its rows has changed: bring back what they were, and clear prepare again. {OR_GIVE_UP}",
            load=str(load),
            attempt=number,
            transactional_id=again.parts[0].lost.transaction.transactional_id,
        )
    try:
        _check_confirmed(session, again, manifest)
        late = [part for part in again.parts if not _adopted(session, part, manifest)]
    except KafkaEosError as e:
        overtaken = _is_overtaken(session, again)  # whoever did it has ended what the brokers do not confirm
        abandon_all(session, again, str(e), manifest)  # what was adopted stays so
        if not overtaken:
            raise
        late = list(again.parts)
    _tell_kafka(session, again, manifest)
    outcomes = {t.transaction: t.outcome for t in session.ledger.transactions(load, number)}
    still = [part for part in late if outcomes.get(part.lost.transaction) is Outcome.LOST]
    if still:
        raise NotFinishedError(
            f"Spark partition {still[0].spark_partition} was prepared again, and its repair {still[0].repair.number} "
            "was made undecidable meanwhile, by cleanup or by hand",
            remedy="Run prepare again, with no cleanup of the load at the same time",
            load=str(load),
            attempt=number,
            transactional_id=still[0].lost.transaction.transactional_id,
        )


def abandon_all(session: Session, again: Repreparation, reason: str, manifest: Manifest | None = None) -> None:
    """Make the repairs undecidable, then end what they have open. Never raises: what is left, cleanup finds.

    :param manifest: what it has reported, if it has.
    """
    load = again.attempt.load
    try:
        for part in again.parts:
            session.ledger.abandon_repair(load, part.repair.number, reason=reason)
        end_abandoned(session, load, closed_too=True, known=_reported(manifest))
    except KafkaEosError as e:
        log.warning("what %s has open is left to the next repair, cleanup, or its timeout: %s", again.ref, e)


def differences(again: Repreparation, manifest: Manifest) -> Iterator[str]:
    """What speaks against taking one for the other: a text for each lost Kafka partition that is not the same. No I/O.

    A digest says nothing of the records' times: those without one of their own get that of the repair.
    """
    before, now = again.attempt.digest_algorithm, manifest.digest_algorithm
    if before != now:
        yield f"its digests are {now}, those of the attempt {before}: they cannot be compared"
        return
    for part in again.parts:
        lost, new = _by_partition(part.lost.writes), _by_partition(_entry(manifest, part).writes)
        for tp in sorted(lost.keys() | new.keys()):
            topic, then = manifest.topics.get(tp.topic), part.lost.topic_ids.get(tp.topic)
            if tp in lost and topic is not None and topic.topic_id != then:
                yield f"topic {tp.topic} was deleted and created again since"
            elif _figures(lost.get(tp)) != _figures(new.get(tp)):
                yield (
                    f"Spark partition {part.spark_partition} had {_figures(lost.get(tp))} in {tp}, and has "
                    f"{_figures(new.get(tp))} now"
                )


def _figures(writes: PartitionWrites | None) -> str:
    return "no records" if writes is None else f"{writes.records} records with digest {writes.digest}"


def _by_partition(writes: tuple[PartitionWrites, ...]) -> dict[TopicPartition, PartitionWrites]:
    return {w.topic_partition: w for w in writes}


def _entry(manifest: Manifest, part: LostPart) -> ManifestEntry:
    """An empty one where the DataFrame has fewer Spark partitions than it had."""
    if part.spark_partition < len(manifest.entries):
        return manifest.entries[part.spark_partition]
    return ManifestEntry(part.spark_partition, None, ())


def _reported(manifest: Manifest | None) -> list[str]:
    return [] if manifest is None else [t.transactional_id for t in manifest.transactions]


def _check_confirmed(session: Session, again: Repreparation, manifest: Manifest) -> None:
    """As decide does it: a manifest is believed as far as the brokers confirm it."""
    try:
        seen = observe(session, manifest, MARGIN_S)
    except TopicError as e:
        found = [e.message]
    else:
        found = problems(manifest, seen, now_ms=int(time.time() * 1000), margin_ms=int(MARGIN_S * 1000))
    if found:
        raise UndecidableError(
            f"what was prepared again can no longer be committed: {'; '.join(found[:3])}",
            remedy="Clear prepare again; if time ran out, raise hold_time, and the brokers' transaction.max.timeout.ms "
            f"if it is less: two-phase or not, they had {again.timeout_ms / 1000:g} s for all tasks of the job",
            load=str(again.attempt.load),
            attempt=again.attempt.number,
        )


def _is_overtaken(session: Session, again: Repreparation) -> bool:
    states = {r.number: r.state for r in session.ledger.repairs(again.attempt.load)}
    return any(states.get(part.repair.number) is RepairState.UNDECIDABLE for part in again.parts)


def _adopted(session: Session, part: LostPart, manifest: Manifest) -> bool:
    entry, repair = _entry(manifest, part), part.repair
    assert entry.transaction is not None  # its digests are those of records
    row = session.ledger.adopt(repair.load, repair.number, entry.transaction, entry.writes)
    if row.state is not RepairState.ADOPTED:
        log.warning("repair %d of %s came too late: %s", row.number, row.load, row.reason)
    return row.state is RepairState.ADOPTED


def _tell_kafka(session: Session, again: Repreparation, manifest: Manifest) -> None:
    """Commit what is adopted now, while it has time left; end what is late, and what other task attempts have left.

    :raises UndecidableError: the load was given up.
    """
    load = again.attempt.load
    given_up: UndecidableError | None = None
    try:
        commit_pass(session, load, again.attempt.number)
    except UndecidableError as e:
        given_up = e  # no commit comes behind this one
    except KafkaEosError as e:
        log.warning("what was prepared again is decided, commit will finish it: %s", e)
    try:
        end_abandoned(session, load, closed_too=True, known=_reported(manifest))
    except KafkaEosError as e:
        log.warning("what %s has open is left to commit, cleanup, or its timeout: %s", again.ref, e)
    if given_up is not None:
        raise given_up
