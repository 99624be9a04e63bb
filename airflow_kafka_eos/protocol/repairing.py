"""Repair: what was aborted after the decision is copied into a new transaction, which takes its place (rule 12).

The ledger comes first at every step (rule 1). Killed before the adoption, a repair is undecidable as soon as another
one is adopted or cleanup comes by, and its transaction is ended; killed behind it, it is decided, and commit rolls it
forward.
"""

from __future__ import annotations

import logging
import time

from airflow_kafka_eos.errors import (
    InDoubtError,
    KafkaEosError,
    NotFinishedError,
    ProducerFencedError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.copying import Copier
from airflow_kafka_eos.kafka.preflight import MAX_TIMEOUT
from airflow_kafka_eos.ledger.rows import RepairRow, RepairState, TransactionRow
from airflow_kafka_eos.ledger.text import for_reason
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.naming import TransactionalId, prefix
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTransaction

log = logging.getLogger(__name__)

#: The broker ends an abandoned repair by itself after that; one that is lost to it is repaired in turn. Kafka's own
#: default for transaction.max.timeout.ms; a lower one of the brokers' is kept to.
TIMEOUT_MS = 900_000
#: A repair that has not begun by then never does (rule 5).
DEADLINE_S = 60


def repair(session: Session, load: LoadIdentity, number: int, lost: TransactionRow, *, by: str) -> bool:
    """Replace one lost transaction of the decided attempt; what enters the decision is open, and commit ends it.

    :param by: who repairs, for the ledger.
    :returns: False when somebody else was first; nothing of ours is left open then.
    :raises InDoubtError: not all of its records are in the log any more. The load is IN_DOUBT.
    :raises KafkaEosError: it did not succeed this time. Nothing of it is left to be decided.
    """
    name = lost.transaction.transactional_id
    opened = session.ledger.open_repair(load, number, name, opened_by=by)
    if opened is None:
        return False
    log.warning("%s attempt %d: %s was lost, repair %d copies it", load, number, name, opened.number)
    own = TransactionalId.parse(opened.transactional_id)
    assert own is not None  # it was built there
    copier = Copier(
        session.partitions.wire,
        own,
        timeout_ms=_timeout_ms(session),
        deadline_ms=int((time.time() + DEADLINE_S) * 1000),
    )
    try:
        transaction, writes = copier.copy(lost.transaction, lost.writes, lost.topic_ids)
        row = session.ledger.adopt(load, opened.number, transaction, writes)
        if row.state is not RepairState.ADOPTED:
            log.warning("repair %d of %s is late: %s", row.number, load, row.reason)
            copier.abort()
    except BaseException as e:
        overtaken = _give_back(session, opened, copier, e)
        if overtaken and isinstance(e, KafkaEosError):
            return False  # by the one that was adopted, which has ended ours
        if isinstance(e, InDoubtError):
            doubt = _in_doubt(session, load, number, lost, e)
            if doubt is None:
                return False
            raise doubt from e
        if isinstance(e, ProducerFencedError):
            raise _ended_by_others(opened, e) from e
        if isinstance(e, UndecidableError):
            raise _too_late(opened, e) from e
        raise
    finally:
        copier.close()
    end_abandoned(session, load)
    return row.state is RepairState.ADOPTED


def _give_back(session: Session, opened: RepairRow, copier: Copier, error: BaseException) -> bool:
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


def _ended_by_others(opened: RepairRow, error: ProducerFencedError) -> NotFinishedError:
    return NotFinishedError(
        f"the transaction of repair {opened.number} was ended while it was written: {error.message}",
        remedy="Nothing is lost: run commit again. If it comes back, see who ends our transactions, or what keeps "
        f"the copy from being done within {TIMEOUT_MS / 1000:g} s",
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


def _in_doubt(
    session: Session, load: LoadIdentity, number: int, lost: TransactionRow, error: InDoubtError
) -> InDoubtError | None:
    """None when the load is COMMITTED: another repair was behind ours, and is done."""
    name = lost.transaction.transactional_id
    what = f"transaction {name} was aborted although the decision was commit, and {error.message}"
    if not session.ledger.record_in_doubt(load, number, what):
        return None
    return InDoubtError(
        what,
        remedy="What is committed of the load stays visible, nothing is written twice. `airflow-kafka-eos loads show` "
        "names what is missing; write it from the source by hand, or load all of it under a load_key of its own. Then "
        "`airflow-kafka-eos loads give-up` closes this load; `loads recover` tries the repair again",
        load=str(load),
        attempt=number,
        transactional_id=name,
    )


def end_abandoned(session: Session, load: LoadIdentity, *, closed_too: bool = False) -> list[str]:
    """End what undecidable repairs of a load have open; the transactional ids that were ended.

    :param closed_too: look for stragglers of repairs that had nothing open when they were closed.

    Rule 11's order: the ledger has made them undecidable for good, then Kafka describes their ids, and exactly the
    described identities are ended.
    """
    over = {r.transactional_id: r for r in session.ledger.repairs(load) if r.state is RepairState.UNDECIDABLE}
    if not over or not (closed_too or any(r.closed_at is None for r in over.values())):
        return []
    listed = session.coordinator.list_open(prefix(load, session.ledger.ledger_id))
    asked = {name for name, r in over.items() if r.closed_at is None or name in listed}
    described = session.coordinator.describe(sorted(asked))
    lingering = [
        PreparedTransaction(name, d.state)
        for name, d in described.items()
        if d.coordinator_state is CoordinatorState.ONGOING
    ]
    if lingering:
        log.info("ending abandoned repairs of %s: %s", load, ", ".join(map(str, lingering)))
        session.coordinator.end_many(lingering, Verdict.ABORT)
    still_open = {name for name, d in described.items() if d.is_open}
    session.ledger.close_repairs(load, [over[name].number for name in asked - still_open])
    return [t.transactional_id for t in lingering]


def _timeout_ms(session: Session) -> int:
    limits = [
        int(found[MAX_TIMEOUT])
        for found in session.partitions.broker_configs([MAX_TIMEOUT]).values()
        if MAX_TIMEOUT in found
    ]
    return min([TIMEOUT_MS, *limits])
