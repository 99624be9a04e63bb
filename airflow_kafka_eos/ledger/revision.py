"""Which revision a ledger's schema has. Without Alembic: each step of a load asks, and importing it takes longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

from sqlalchemy import Connection, String, column, inspect, select, table

from airflow_kafka_eos.errors import LedgerNotReadyError
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.tables import REVISION, VERSION_TABLE

T = TypeVar("T")

_VERSION = select(column("version_num", String)).select_from(table(VERSION_TABLE))


def current(url: str) -> str | None:
    """The revision of the ledger at ``url``; None when there is none yet."""
    database = Database(url)
    try:
        return None if database.is_missing else database.read(read_revision)
    finally:
        database.close()


def is_current(database: Database) -> bool:
    """Whether the ledger is there, and at the revision that this version of the package works with."""
    return not database.is_missing and database.read(read_revision) == REVISION


def read_checked(database: Database, work: Callable[[Connection], T]) -> T:
    """Read from a ledger, after making sure that this version of the package knows its schema.

    :raises LedgerUnavailableError: unreachable; :class:`LedgerNotReadyError` where it is not created or not upgraded.
    :raises ConfigurationError: upgraded by a newer version already.
    """

    def checked(connection: Connection) -> T:
        revision = read_revision(connection)
        if revision != REVISION:
            _raise_not_ready(revision, database.shown)
        return work(connection)

    if database.is_missing:
        _raise_not_ready(None, database.shown)
    return database.read(checked)


def read_revision(connection: Connection) -> str | None:
    """What Alembic has written down; None for a database without its table, or with an empty one."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(_VERSION).scalar_one_or_none()


def _raise_not_ready(revision: str | None, shown: str) -> NoReturn:
    from airflow_kafka_eos.ledger.migrate import check_revision_known

    check_revision_known(revision)
    what = "has not been created yet" if revision is None else f"is at revision {revision}, not {REVISION}"
    raise LedgerNotReadyError(
        f"the ledger {shown} {what}", remedy="Run `airflow-kafka-eos ledger upgrade` once, then try again"
    )
