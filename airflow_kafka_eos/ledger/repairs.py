"""Repairs: a lost transaction's replacement enters the decision by compare-and-set on the lost row.

Rule: repair-replaces-lost-row.

Each function is one locked database transaction's work. The lock is the load's row, as for every decision
(rule: one-decision-per-load).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import Locked, lock, move, must_lock, now
from airflow_kafka_eos.ledger.rows import RepairRow, RepairState, read_row
from airflow_kafka_eos.ledger.tables import for_people, for_reason
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction

_R = t.repairs.c


def open_repair(
    connection: Connection, load: LoadIdentity, number: int, lost: str, ledger_id: str, opened_by: str
) -> RepairRow | None:
    """Open an attempt to replace a lost transaction of the decided attempt; the load is REPAIRING then.

    Before anything is written (rule: decide-before-kafka). None: it is not lost (any more), or the load is COMMITTED.
    Other repairs of it may be under way: the first that is ready is adopted, so two never keep ending each other.

    :raises UndecidableError: the load is not decided to be committed, or is GIVEN_UP.
    """
    locked = must_lock(connection, load)
    attempt = locked.attempt(number)
    if attempt.verdict is not Verdict.COMMIT or locked.row.state is LoadState.GIVEN_UP:
        raise UndecidableError(
            f"a load in state {locked.row.state.value} is not repaired",
            remedy="Repairs belong to a commit decision that nobody has given up",
            load=str(load),
            attempt=number,
        )
    attempt_id = locked.attempt_id(number)
    # asked first: whoever is overtaken may find all of the load repaired and COMMITTED
    if _outcome(connection, attempt_id, lost) is not Outcome.LOST:
        return None
    if locked.row.state is not LoadState.REPAIRING:
        move(connection, locked, LoadState.REPAIRING)
    highest = connection.execute(select(func.max(_R.number)).where(_R.attempt_id == attempt_id)).scalar()
    own = max(highest or 0, locked.row.newest_attempt) + 1
    name = TransactionalId(load, ledger_id, own, role=IdRole.LOAD)
    row = RepairRow(load, number, own, lost, str(name), RepairState.OPEN, now(), for_people(opened_by))
    connection.execute(
        insert(t.repairs).values(
            attempt_id=attempt_id,
            number=own,
            lost_transactional_id=lost,
            transactional_id=row.transactional_id,
            state=row.state.value,
            opened_at=row.opened_at,
            opened_by=row.opened_by,
            reason="",
        )
    )
    return row


def adopt(
    connection: Connection,
    load: LoadIdentity,
    number: int,
    transaction: PreparedTransaction,
    writes: Sequence[PartitionWrites],
) -> RepairRow:
    """Let a repair's transaction enter the decision in the lost one's place, or make the repair undecidable.

    The lost row is compared-and-set, KIP-939's mapping follows, every other repair of it loses. The answer is the
    repair: ADOPTED, or UNDECIDABLE when another one was first or cleanup took it for a dead one.

    :raises ConfigurationError: the transaction is not the repair's own, or has other records than the lost one.
    """
    locked = must_lock(connection, load)
    attempt_id, row = _repair(connection, locked, number)
    if not _is_of(row, transaction.transactional_id) or transaction.state.is_empty:
        raise ConfigurationError(
            f"{transaction} is not the transaction of repair {number}, {row.transactional_id}",
            remedy="Adopt what was prepared under the repair's own transactional id",
            load=str(load),
            attempt=number,
            transactional_id=transaction.transactional_id,
        )
    if row.state is not RepairState.OPEN:
        return row  # lost, or adopted when the answer did not arrive
    if locked.row.state is not LoadState.REPAIRING:
        return _end(connection, attempt_id, row, f"the load is {locked.row.state.value}")
    if _outcome(connection, attempt_id, row.lost_transactional_id) is not Outcome.LOST:
        return _end(connection, attempt_id, row, f"{row.lost_transactional_id} is not lost any more")
    c, moment = t.transactions.c, now()
    of_lost = (c.attempt_id == attempt_id, c.transactional_id == row.lost_transactional_id)
    lost = connection.execute(select(t.transactions).where(*of_lost)).one()
    _check_same_records(row, lost, transaction.transactional_id, writes)
    connection.execute(
        update(t.transactions).where(*of_lost).values(outcome=Outcome.SUPERSEDED.value, outcome_at=moment)
    )
    connection.execute(
        insert(t.transactions).values(
            transactional_id=transaction.transactional_id,
            attempt_id=attempt_id,
            prepared_transaction_state=str(transaction.state),
            spark_partition=lost.spark_partition,
            records=lost.records,
            bytes=lost.bytes,
            writes=json.dumps([asdict(w) for w in writes]),
            topic_ids=lost.topic_ids,
        )
    )
    mapping = t.kafka_transaction_state
    connection.execute(delete(mapping).where(mapping.c.transactional_id == row.lost_transactional_id))
    connection.execute(
        insert(mapping).values(
            transactional_id=transaction.transactional_id, prepared_transaction_state=str(transaction.state)
        )
    )
    own, state = transaction.transactional_id, RepairState.ADOPTED
    _set(connection, attempt_id, [number], state=state.value, ended_at=moment, transactional_id=own)
    end_open(connection, attempt_id, f"repair {number} was adopted", lost=row.lost_transactional_id)
    return replace(row, state=state, ended_at=moment, transactional_id=own)


def abandon(connection: Connection, load: LoadIdentity, number: int, *, reason: str) -> RepairRow:
    """Make a repair undecidable, unless it was adopted; as it is then."""
    locked = must_lock(connection, load)
    attempt_id, row = _repair(connection, locked, number)
    return _end(connection, attempt_id, row, reason) if row.state is RepairState.OPEN else row


def abandon_all(connection: Connection, load: LoadIdentity, *, reason: str) -> None:
    """Make every repair of a load undecidable that is not adopted, before what it has open is ended.

    Rule: decide-before-kafka.
    """
    locked = lock(connection, load)
    if locked is not None and locked.committed is not None:
        end_open(connection, locked.attempt_id(locked.committed.number), reason)


def close(connection: Connection, load: LoadIdentity, numbers: Collection[int]) -> None:
    """Note that nothing of these undecidable repairs is open."""
    locked = must_lock(connection, load)
    if locked.committed is not None:
        attempt_id = locked.attempt_id(locked.committed.number)
        _set(connection, attempt_id, numbers, only=RepairState.UNDECIDABLE, closed_at=now())


def end_open(connection: Connection, attempt_id: int, reason: str, *, lost: str | None = None) -> None:
    """Make the open repairs of an attempt undecidable, all or those of one lost transaction; the load is locked."""
    of = [_R.attempt_id == attempt_id, _R.state == RepairState.OPEN.value]
    if lost is not None:
        of.append(_R.lost_transactional_id == lost)
    values = {"state": RepairState.UNDECIDABLE.value, "ended_at": now(), "reason": for_reason(reason)}
    connection.execute(update(t.repairs).where(*of).values(values))


def repair_rows(connection: Connection, load: LoadIdentity) -> list[RepairRow]:
    """Oldest first."""
    loads = t.loads.c
    query = (
        select(t.repairs, t.attempts.c.number.label("attempt_number"))
        .join(t.attempts, t.attempts.c.id == _R.attempt_id)
        .join(t.loads, loads.id == t.attempts.c.load_id)
        .where(loads.namespace == load.namespace, loads.name == load.name, loads.load_key == load.key)
        .order_by(_R.number)
    )
    return [_row(load, row.attempt_number, row) for row in connection.execute(query)]


def _is_of(row: RepairRow, name: str) -> bool:
    """Whether an id is a repair's: the copy's, or that of a Spark task attempt which has prepared it again."""
    own, found = TransactionalId.parse(row.transactional_id), TransactionalId.parse(name)
    if own is None or found is None or row.state is RepairState.ADOPTED:
        return row.transactional_id == name
    return found == own or (
        (found.load, found.ledger_id, found.attempt) == (own.load, own.ledger_id, row.number)
        and found.role is IdRole.TASK
    )


def _check_same_records(row: RepairRow, lost: Row[Any], name: str, writes: Sequence[PartitionWrites]) -> None:
    """Whoever repairs has compared before, and says it better: a second line for what may never enter."""
    parsed = TransactionalId.parse(name)
    partition = lost.spark_partition if parsed is None or parsed.spark_partition is None else parsed.spark_partition
    before = {(w["topic"], w["partition"], w["records"], w["digest"]) for w in json.loads(lost.writes)}
    if partition != lost.spark_partition or {(w.topic, w.partition, w.records, w.digest) for w in writes} != before:
        raise ConfigurationError(
            f"what {name} has written is not what {row.lost_transactional_id} had",
            remedy="Adopt only what has the same Spark partition, counts and digests",
            load=str(row.load),
            attempt=row.number,
            transactional_id=name,
        )


def _outcome(connection: Connection, attempt_id: int, transactional_id: str) -> Outcome | None:
    c = t.transactions.c
    where = (c.attempt_id == attempt_id, c.transactional_id == transactional_id)
    found = connection.execute(select(c.outcome).where(*where)).scalar()
    return None if found is None else Outcome(found)


def _repair(connection: Connection, locked: Locked, number: int) -> tuple[int, RepairRow]:
    """The decided attempt's row id, and the repair."""
    if locked.committed is not None:
        attempt = locked.committed.number
        attempt_id = locked.attempt_id(attempt)
        where = (_R.attempt_id == attempt_id, _R.number == number)
        found = connection.execute(select(t.repairs).where(*where)).one_or_none()
        if found is not None:
            return attempt_id, _row(locked.row.load, attempt, found)
    raise ConfigurationError(
        f"the ledger has no repair {number} of this load",
        remedy="Take numbers from the ledger's own repairs",
        load=str(locked.row.load),
        attempt=number,
    )


def _end(connection: Connection, attempt_id: int, row: RepairRow, reason: str) -> RepairRow:
    moment, why = now(), for_reason(reason)
    state = RepairState.UNDECIDABLE
    _set(connection, attempt_id, [row.number], state=state.value, ended_at=moment, reason=why)
    return replace(row, state=state, ended_at=moment, reason=why)


def _set(
    connection: Connection,
    attempt_id: int,
    numbers: Collection[int],
    only: RepairState | None = None,
    **columns: Any,
) -> None:
    where = [_R.attempt_id == attempt_id, _R.number.in_(list(numbers))]
    if only is not None:
        where.append(_R.state == only.value)
    connection.execute(update(t.repairs).where(*where).values(columns))


def _row(load: LoadIdentity, attempt: int, row: Row[Any]) -> RepairRow:
    return read_row(RepairRow, row, load=load, attempt=attempt, state=RepairState(row.state))
