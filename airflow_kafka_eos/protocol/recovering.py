"""Recover a load that is decided and not committed, or give it up by name."""

from __future__ import annotations

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.ledger.rows import LoadRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.committing import commit, decided_attempt
from airflow_kafka_eos.protocol.session import Session


def recover(session: Session, load: LoadIdentity, *, by: str, deadline_s: float) -> LoadRow:
    """Roll a decided load forward; as it is then.

    :raises UndecidableError: it has no commit decision.
    :raises InDoubtError: its logs do not tell of a commit; a person decides.
    :raises NotFinishedError: markers are missing at the deadline.
    """
    commit(session, load, deadline_s=deadline_s)
    return _row(session, load)


def give_up(session: Session, load: LoadIdentity, *, by: str, reason: str) -> LoadRow:
    """A person says that a decided load will not be completed: its transactions may be ended then.

    :raises UndecidableError: it has no commit decision, or it is COMMITTED.
    """
    session.ledger.record_in_doubt(load, decided_attempt(session, load).number, f"given up by {by}: {reason}")
    return _row(session, load)


def _row(session: Session, load: LoadIdentity) -> LoadRow:
    row = session.ledger.load(load)
    if row is None:
        raise ConfigurationError(
            f"the ledger knows no load {load}", remedy="Run `airflow-kafka-eos loads list`", load=str(load)
        )
    return row
