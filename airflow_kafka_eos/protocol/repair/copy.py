"""Repair: what was aborted after the decision is copied into a new transaction, which takes its place.

Rule: repair-replaces-lost-row.

The ledger comes first at every step (rule: decide-before-kafka). Killed before the adoption, a repair is undecidable as
soon as another one is adopted or cleanup comes by, and its transaction is ended; killed behind it, it is decided, and
commit rolls it forward.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import assert_never

from airflow_kafka_eos.errors import (
    InDoubtError,
    KafkaEosError,
    NotFinishedError,
    ProducerFencedError,
    RecordsGoneError,
    TooLargeToCopyError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.admin.preflight import MAX_TIMEOUT
from airflow_kafka_eos.kafka.producer.copier import RAISE_TIMEOUT, Copier, cost_of, too_large
from airflow_kafka_eos.ledger.rows import RepairRow, RepairState, TransactionRow
from airflow_kafka_eos.ledger.tables import for_reason
from airflow_kafka_eos.load import GIVE_UP, OR_GIVE_UP, WRITE, LoadIdentity, Verdict
from airflow_kafka_eos.micro_batch import is_of_a_query
from airflow_kafka_eos.naming import TransactionalId, prefix
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch
from airflow_kafka_eos.protocol.guards.ownership import check_cluster, number_of
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTransaction, TopicPartition

log = logging.getLogger(__name__)

#: How long a repair's transaction may stay open is for the brokers to say (transaction.max.timeout.ms). Where they do
#: not show it, DESCRIBE_CONFIGS on the Cluster being missing, these are asked for in turn: a refusal costs nothing.
_MINUTE_MS = 60_000
UNSEEN_TIMEOUTS_MS = (
    *(minutes * _MINUTE_MS for minutes in (1440, 720, 360, 180, 120, 60, 30, 15, 10, 5, 2, 1)),
    *(30_000, 10_000, 5_000, 1_000),
)
#: A repair that has not begun by then never does (rule: writers-have-a-deadline).
DEADLINE_S = 60
PREPARE_AGAIN = (
    "Clear prepare of the load's run, with what is downstream (with on_committed='reload' only while the load is "
    "REPAIRING or IN_DOUBT): it runs the job again, writes only the Spark partitions that are lost, and lets them in "
    "if their digests are equal"
)
OF_A_BATCH = (
    f"Nothing of a decided batch is written again: {GIVE_UP}, and write what is missing by hand; `loads show` names "
    "it. Start the query again at any time: it goes on behind the batch"
)


def repair(session: Session, load: LoadIdentity, number: int, lost: TransactionRow, *, by: str) -> bool:
    """Replace one lost transaction of the decided attempt; what enters the decision is open, and commit ends it.

    :param by: who repairs, for the ledger.
    :returns: False when somebody else was first; nothing of ours is left open then.
    :raises RecordsGoneError: not all of its records are in the log any more. The load stays REPAIRING: prepare can
        write them again (:mod:`.reprepare`).
    :raises TooLargeToCopyError: to copy it takes longer than the brokers let a transaction stay open. Said before
        anything is written where that is plain already, else as soon as it is. The load stays REPAIRING.
    :raises InDoubtError: what is in the log is not what was written, or in scope ``load`` is not there any more. The
        load is IN_DOUBT.
    :raises KafkaEosError: it did not succeed this time. Nothing of it is left to be decided.
    """
    name = lost.transaction.transactional_id
    limit = allowed_ms(session)
    cost = cost_of(session.partitions.wire, lost.transaction, lost.writes, lost.topic_ids)
    may_take = "as long as the brokers allow" if limit is None else f"{limit / 1000:g} s at most"
    if limit is not None and cost.seconds is not None and cost.seconds > limit / 1000:
        return _too_large(session, load, number, lost, too_large(name, f"it takes {cost}", limit / 1000))
    opened = session.ledger.open_repair(load, number, name, opened_by=by)
    if opened is None:
        return False
    log.warning(
        "%s attempt %d: %s was lost, repair %d copies it: %s; it may take %s",
        load, number, name, opened.number, cost, may_take,
    )  # fmt: skip
    first, *or_less = UNSEEN_TIMEOUTS_MS if limit is None else (limit,)
    began = time.monotonic()
    own = TransactionalId.parse(opened.transactional_id)
    assert own is not None  # it was built there
    copier = Copier(
        session.partitions.wire,
        own,
        timeout_ms=first,
        or_less=or_less,
        deadline_ms=int((time.time() + DEADLINE_S) * 1000),
    )
    try:
        transaction, writes = copier.copy(lost.transaction, lost.writes, lost.topic_ids)
        row = session.ledger.adopt(load, opened.number, transaction, writes)
        if row.state is not RepairState.ADOPTED:
            log.warning("repair %d of %s came too late: %s", row.number, load, row.reason)
            copier.abort()
    except BaseException as e:
        overtaken = _abandon(session, opened, copier, e)
        if overtaken and isinstance(e, KafkaEosError):
            return False  # by the one that was adopted, which has ended ours
        if isinstance(e, InDoubtError):
            # in scope load nothing is prepared again
            final = _gone if isinstance(e, RecordsGoneError) and lost.spark_partition is not None else _in_doubt
            problem = final(session, load, number, lost, e)
            if problem is None:
                return False
            raise problem from e
        if isinstance(e, TooLargeToCopyError):
            return _too_large(session, load, number, lost, e)
        if isinstance(e, ProducerFencedError):
            raise _ended_by_others(opened, e, copier.timeout_ms) from e
        if isinstance(e, UndecidableError):
            raise _too_late(opened, e) from e
        raise
    finally:
        copier.close()
    took_s = time.monotonic() - began
    log.info("repair %d of %s: %d records were copied in %.3g s", row.number, load, cost.records, took_s)
    end_abandoned(session, load)
    return row.state is RepairState.ADOPTED


def _abandon(session: Session, opened: RepairRow, copier: Copier, error: BaseException) -> bool:
    """First the ledger, then Kafka; True when somebody else had made it undecidable before.

    A ledger that does not answer may have adopted it: then nothing is ended.
    """
    why = f"{type(error).__name__} at {time.time():.6f}: {error}"
    try:
        row = session.ledger.abandon_repair(opened.load, opened.number, reason=why)
    except KafkaEosError as e:
        log.warning("repair %d of %s is left to the next commit or cleanup: %s", opened.number, opened.load, e)
        return False
    if row.state is RepairState.UNDECIDABLE:
        copier.abort()
    return row.reason != for_reason(why)


def _ended_by_others(opened: RepairRow, error: ProducerFencedError, timeout_ms: int) -> NotFinishedError:
    return NotFinishedError(
        f"the transaction of repair {opened.number} was ended while it was written: {error.message}",
        remedy="Nothing is lost: run commit again. If it comes back, see who ends our transactions, or what keeps "
        f"the copy from being done within {timeout_ms / 1000:g} s (transaction.max.timeout.ms)",
        load=str(opened.load),
        attempt=opened.number,
        transactional_id=opened.transactional_id,
    )


def _too_late(opened: RepairRow, error: UndecidableError) -> NotFinishedError:
    """The writer's deadline is a repair's too, and another repair has one of its own: final it is for a writer only."""
    return NotFinishedError(
        f"repair {opened.number} could not begin its transaction within {DEADLINE_S} s: {error.message}",
        remedy="Nothing is lost: look at the brokers' transaction coordinators, then run commit again",
        load=str(opened.load),
        attempt=opened.number,
        transactional_id=opened.transactional_id,
    )


def _too_large(
    session: Session, load: LoadIdentity, number: int, lost: TransactionRow, error: TooLargeToCopyError
) -> bool:
    """False when the load is COMMITTED: another repair was behind ours, and is done.

    :raises TooLargeToCopyError: otherwise, with all that is known of it.
    """
    name = lost.transaction.transactional_id
    what = f"transaction {name} was aborted although the decision was commit, and {error.message}"
    # in scope load nothing is prepared again
    again = "" if lost.spark_partition is None else f". Or let Spark write it by many tasks at once. {PREPARE_AGAIN}"
    if _is_a_batch(session, load, number):
        again = f"; a query does so when it is started again. Else: {OF_A_BATCH}"
    remedy = f"{RAISE_TIMEOUT}: the copy may then stay open for longer{again}"
    if not session.ledger.record_repairing(load, number, f"{what}. {remedy}", newer=True):
        return False
    raise TooLargeToCopyError(what, remedy=remedy, load=str(load), attempt=number, transactional_id=name) from error


def _gone(
    session: Session, load: LoadIdentity, number: int, lost: TransactionRow, error: InDoubtError
) -> RecordsGoneError | None:
    """None when the load is COMMITTED: another repair was behind ours, and is done."""
    name = lost.transaction.transactional_id
    what = (
        f"Spark partition {lost.spark_partition} ({name}) was aborted although the decision was commit, and its "
        f"records are gone from the log: {error.message}"
    )
    is_a_batch = _is_a_batch(session, load, number)
    noted = OF_A_BATCH if is_a_batch else PREPARE_AGAIN
    if not session.ledger.record_repairing(load, number, f"{what}. {noted}", newer=True):
        return None
    remedy = OF_A_BATCH if is_a_batch else f"{PREPARE_AGAIN}. {OR_GIVE_UP}"
    return RecordsGoneError(what, remedy=remedy, load=str(load), attempt=number, transactional_id=name)


def _is_a_batch(session: Session, load: LoadIdentity, number: int) -> bool:
    row = session.ledger.attempt(load, number)
    return row is not None and is_of_a_query(load, row.submitted_by)


def _in_doubt(
    session: Session, load: LoadIdentity, number: int, lost: TransactionRow, error: InDoubtError
) -> InDoubtError | None:
    """None when the load is COMMITTED: another repair was behind ours, and is done."""
    name = lost.transaction.transactional_id
    what = f"transaction {name} was aborted although the decision was commit, and {error.message}"
    if isinstance(error, RecordsGoneError):
        what += ". Scope load is not prepared again: its rows come through a shuffle, in another order each time"
    if not session.ledger.record_in_doubt(load, number, what):
        return None
    return InDoubtError(
        what,
        remedy="What is committed of the load stays visible, nothing is written twice. `airflow-kafka-eos loads "
        f"recover {load.in_command}` tries the repair again. Else {GIVE_UP}; then {WRITE}. `loads show` names what "
        "is missing",
        load=str(load),
        attempt=number,
        transactional_id=name,
    )


def end_abandoned(
    session: Session,
    load: LoadIdentity,
    *,
    closed_too: bool = False,
    known: Iterable[str] = (),
    partitions: set[TopicPartition] | None = None,
) -> list[str]:
    """End what repairs of a load have open and nobody decides any more; the transactional ids that were ended.

    That is all of an undecidable repair, and of an adopted one whatever Spark's other task attempts have left.

    :param closed_too: look for stragglers: of adopted repairs, and of those that had nothing open when closed.
    :param known: ids of them that the caller knows by name, for a listing may hide some (rule: listing-only-adds).
    :param partitions: the partitions of what is ended are added to it.

    The order (rule: describe-then-ask): the ledger has said for good what is decided of a repair that is not open any
    more, then Kafka describes their ids, and exactly the described identities are ended.

    :raises OtherClusterError: they were written to another cluster: here nothing of theirs would be open.
    """
    decided: set[int] = set()
    unclosed: dict[int, RepairRow] = {}
    for row in session.ledger.repairs(load):
        match row.state:
            case RepairState.OPEN:
                continue  # it may still be decided
            case RepairState.ADOPTED:
                pass
            case RepairState.UNDECIDABLE:
                if row.closed_at is None:
                    unclosed[row.number] = row
            case _:
                assert_never(row.state)
        decided.add(row.number)
    if not (unclosed or (decided and closed_too)):
        return []
    repaired = {r.attempt for r in unclosed.values()}
    attempts = [row for row in session.ledger.attempts(load) if row.number in repaired]
    check_cluster(session, attempts, closed_too=True)  # a repair may be left behind a committed load
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_open(prefix(load, session.ledger.ledger_id))
    hidden = watch.has_moved()
    numbers = {name: n for name in (*listed, *known) if (n := number_of(session, load, name)) in decided}
    # a copy's only id is known by name; those of Spark's task attempts are not, where none was adopted
    numbers |= {r.transactional_id: n for n, r in unclosed.items()}
    described = session.coordinator.describe(sorted(numbers))
    lingering = [
        identity
        for name, d in described.items()
        if d.coordinator_state is CoordinatorState.ONGOING
        and not session.ledger.is_decided_commit(identity := PreparedTransaction(name, d.state))
    ]
    if lingering:
        log.info("ending abandoned repairs of %s: %s", load, ", ".join(map(str, lingering)))
        if partitions is not None:
            partitions.update(*(described[t.transactional_id].partitions for t in lingering))
        session.coordinator.end_many(lingering, Verdict.ABORT)
    still_open = {numbers[name] for name, d in described.items() if d.is_open}
    if not hidden:
        session.ledger.close_repairs(load, set(unclosed) - still_open)
    return [t.transactional_id for t in lingering]


def allowed_ms(session: Session) -> int | None:
    """How long every broker lets a transaction stay open; None where the login may not see it."""
    return min(session.broker_limits(MAX_TIMEOUT), default=None)
