"""Whose a transactional id is: which attempt in the ledger holds it (rules 6 and 11)."""

from __future__ import annotations

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTransaction


def is_ours(session: Session, transactional_id: str) -> bool:
    """Whether an id parses as one of this namespace and this ledger."""
    parsed = TransactionalId.parse(transactional_id)
    return parsed is not None and (parsed.load.namespace, parsed.ledger_id) == (
        session.namespace,
        session.ledger.ledger_id,
    )


def refuse_foreign(session: Session, transactional_id: str) -> None:
    """:raises ConfigurationError: the id is not of this namespace and ledger (rule 6)."""
    if is_ours(session, transactional_id):
        return
    parsed = TransactionalId.parse(transactional_id)
    if parsed is None:
        what, remedy = "is not one of this package's", "that application"
    elif parsed.ledger_id != session.ledger.ledger_id:
        what = f"is of ledger {parsed.ledger_id}, this one is {session.ledger.ledger_id}"
        remedy = "whoever has that ledger"
    else:
        what = f"is of namespace {parsed.load.namespace!r}, not {session.namespace!r}"
        remedy = f"--namespace {parsed.load.namespace}"
    raise ConfigurationError(
        f"transactional id {transactional_id!r} {what}: it is never ended from here (rule 6)",
        remedy=f"It is for {remedy} to end",
        transactional_id=transactional_id,
    )


def holder_of(session: Session, transaction: PreparedTransaction) -> AttemptRow | None:
    """The attempt that a transaction belongs to; None when the ledger does not know any.

    What was prepared under that very identity first, then whom the id was given to.
    """
    if not transaction.state.is_empty:
        for attempt, row in session.ledger.holders([transaction.state]):
            if row.transaction == transaction:
                return attempt
    parsed = TransactionalId.parse(transaction.transactional_id)
    return None if parsed is None else session.ledger.attempt(parsed.load, parsed.attempt)
