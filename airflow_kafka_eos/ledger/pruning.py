"""Pruning: what nobody asks for any more of attempts that were closed long ago (docs/adr/0030).

Rule: one-key-loads-once.

A load, its attempts, decisions and repairs stay for ever: they are why a key loads once, and why an id is known. What
goes is the transactions of an attempt, which are most of a ledger. Of a committed one a summary takes their place.

An attempt is pruned whole or not at all, with its load locked as for everything else, and looked at again under the
lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, delete, exists, func, insert, or_, select, update

from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import lock, now, transaction_rows
from airflow_kafka_eos.ledger.rows import RepairState, summary_of
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict

#: In one database transaction: SQLite's other writers wait for it.
ATTEMPTS_AT_ONCE, TRANSACTIONS_AT_ONCE = 100, 5_000


@dataclass(frozen=True)
class Prunable:
    """How much there is to prune."""

    attempts: int
    transactions: int


@dataclass(frozen=True)
class Pruned:
    """What one database transaction has pruned.

    :param behind: where the next one goes on; None: that was all.
    """

    attempts: int
    transactions: int
    behind: tuple[str, int] | None


def prunable(connection: Connection, before: str, namespace: str | None = None) -> Prunable:
    """What :func:`prune` would prune now. It counts all of it.

    :param before: an ISO time in UTC, see :func:`prune`.
    """
    ids = _may_be_pruned(select(t.attempts.c.id), before, namespace).subquery()
    attempts = connection.execute(select(func.count()).select_from(ids)).scalar_one()
    of = select(func.count()).where(t.transactions.c.attempt_id.in_(select(ids.c.id)))
    return Prunable(attempts, connection.execute(of).scalar_one())


def prune(
    connection: Connection, before: str, namespace: str | None = None, behind: tuple[str, int] | None = None
) -> Pruned:
    """Prune some of the attempts that were closed before a moment, the oldest first.

    Those that were aborted; and committed ones, where their load is COMMITTED and no repair of it is left to end. Of
    pooled ids a coordinator shows what was done last: an attempt that was the last to use one of its ids is left whole,
    until a later one has used all of them.

    :param before: an ISO time in UTC with microseconds.
    :param namespace: only of its loads; None: of all.
    :param behind: where the last answer ended.
    """
    c = t.attempts.c
    columns = select(c.id, c.number, c.closed_at, t.loads.c.namespace, t.loads.c.name, t.loads.c.load_key)
    query = _may_be_pruned(columns, before, namespace).order_by(c.closed_at, c.id).limit(ATTEMPTS_AT_ONCE)
    if behind is not None:
        query = query.where(or_(c.closed_at > behind[0], and_(c.closed_at == behind[0], c.id > behind[1])))
    attempts = transactions = 0
    last = None
    for row in connection.execute(query).all():
        last = (row.closed_at, row.id)
        found = _prune(connection, LoadIdentity(row.namespace, row.name, row.load_key), row.id, row.number, before)
        attempts += found is not None
        transactions += found or 0
        if transactions >= TRANSACTIONS_AT_ONCE:
            break
    return Pruned(attempts, transactions, last)


def _prune(connection: Connection, load: LoadIdentity, attempt_id: int, number: int, before: str) -> int | None:
    """How many transactions; None: it may not be pruned any more."""
    lock(connection, load)
    still = _may_be_pruned(select(t.decisions.c.verdict), before, None).where(t.attempts.c.id == attempt_id)
    verdict = connection.execute(still).scalar_one_or_none()
    if verdict is None:
        return None
    if verdict == Verdict.COMMIT.value:
        found = summary_of(transaction_rows(connection, load, number))
        connection.execute(
            insert(t.summaries).values(
                attempt_id=attempt_id,
                transactions=found.transactions,
                repaired=found.repaired,
                topics=json.dumps(found.topics),
            )
        )
    gone = connection.execute(delete(t.transactions).where(t.transactions.c.attempt_id == attempt_id))
    connection.execute(update(t.attempts).where(t.attempts.c.id == attempt_id).values(pruned_at=now()))
    return gone.rowcount


def _may_be_pruned(query: Select[Any], before: str, namespace: str | None) -> Select[Any]:
    c, r = t.attempts.c, t.repairs.c
    is_repaired = exists().where(
        r.attempt_id == c.id,
        or_(r.state == RepairState.OPEN.value, and_(r.state != RepairState.ADOPTED.value, r.closed_at.is_(None))),
    )
    verdict = t.decisions.c.verdict
    committed = and_(
        verdict == Verdict.COMMIT.value, t.loads.c.state == LoadState.COMMITTED.value, ~is_repaired
    )
    query = (
        query.join_from(t.attempts, t.loads, t.loads.c.id == c.load_id)
        .join(t.decisions, t.decisions.c.attempt_id == c.id)
        .where(
            c.pruned_at.is_(None),
            c.closed_at < before,
            c.prepared_at.is_not(None),
            or_(verdict == Verdict.ABORT.value, committed),
            or_(c.slot.is_(None), ~_was_last()),
        )
    )
    return query if namespace is None else query.where(t.loads.c.namespace == namespace)


def _was_last() -> Any:
    """Whether no later attempt has prepared something under one of the attempt's (pooled) ids.

    Later by both: a slot goes to attempts in no order of their numbers, and its next lease describes what the last ones
    by number have reported.
    """
    own, other, by = t.transactions.alias(), t.transactions.alias(), t.attempts.alias()
    later = (
        exists()
        .select_from(other.join(by, by.c.id == other.c.attempt_id))
        .where(
            other.c.transactional_id == own.c.transactional_id,
            by.c.id > t.attempts.c.id,
            by.c.prepared_at > t.attempts.c.prepared_at,
        )
        .correlate(own, t.attempts)
    )
    return exists().select_from(own).where(own.c.attempt_id == t.attempts.c.id, ~later)
