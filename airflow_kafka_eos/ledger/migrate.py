"""Bringing a ledger's schema up to date, by Alembic, with a version table of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from airflow_kafka_eos.errors import ConfigurationError, LedgerUnavailableError
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.tables import VERSION_TABLE

T = TypeVar("T")

#: any number that no other application's advisory lock is likely to have
_ADVISORY_LOCK = 5_939_511_890
_MYSQL_LOCK = "kafka_eos_ledger_upgrade"
# alembic.context is a global of the process: two threads cannot run env.py at once
_one_at_a_time = threading.Lock()


def upgrade(url: str) -> None:
    """Create or upgrade the ledger at ``url``; nothing happens to one that is up to date.

    Safe to run from many processes at once: one does it, the others wait and find it done. One that was killed is run
    again; on MySQL, which cannot roll back changes of a schema, it goes on where it stopped.

    :raises LedgerUnavailableError: it cannot be reached.
    :raises ConfigurationError: it was upgraded by a newer version of this package already.
    """
    database = Database(url)
    try:
        if not database.is_missing and database.read(read_revision) == head():
            return  # the common case needs no lock and no right to write
        database.make_directory()
        with _one_at_a_time:
            database.write(_upgrade)
    except OSError as e:
        raise LedgerUnavailableError(
            f"the directory of the ledger {database.shown} cannot be made ({e.strerror})",
            remedy="Make it, writable for whoever runs Airflow's tasks",
        ) from e
    finally:
        database.close()


def current(url: str) -> str | None:
    """The revision of the ledger at ``url``; None when there is none yet."""
    database = Database(url)
    try:
        return None if database.is_missing else database.read(read_revision)
    finally:
        database.close()


def head() -> str:
    """The revision that this version of the package works with."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def read_checked(database: Database, work: Callable[[Connection], T]) -> T:
    """Read from a ledger, after making sure that this version of the package knows its schema.

    :raises LedgerUnavailableError: unreachable, not created or not upgraded yet.
    :raises ConfigurationError: upgraded by a newer version already.
    """

    def checked(connection: Connection) -> T:
        revision = read_revision(connection)
        if revision != head():
            _refuse(revision, database.shown)
        return work(connection)

    if database.is_missing:
        _refuse(None, database.shown)
    return database.read(checked)


def _refuse(revision: str | None, shown: str) -> NoReturn:
    _refuse_newer(revision)
    what = "has not been created yet" if revision is None else f"is at revision {revision}, not {head()}"
    raise LedgerUnavailableError(
        f"the ledger {shown} {what}", remedy="Run `airflow-kafka-eos ledger upgrade` once, then try again"
    )


def read_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE}
    ).get_current_revision()


def _upgrade(connection: Connection) -> None:
    # a lock of the whole database; SQLite has one by BEGIN IMMEDIATE already
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    mysql = connection.dialect.name in ("mysql", "mariadb")
    if mysql and connection.execute(text("SELECT GET_LOCK(:name, 60)"), {"name": _MYSQL_LOCK}).scalar() != 1:
        raise LedgerUnavailableError(
            "another process has been upgrading this ledger for more than 60 seconds",
            remedy="Try again later",
        )
    try:
        revision = read_revision(connection)
        if revision == head():
            return
        _refuse_newer(revision)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    finally:
        if mysql:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": _MYSQL_LOCK})


def _refuse_newer(revision: str | None) -> None:
    known = {r.revision for r in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise ConfigurationError(
            f"the ledger is at revision {revision}, which this version of airflow-kafka-eos does not know",
            remedy="Install the version of airflow-kafka-eos that upgraded the ledger, everywhere",
        )


def _config() -> Config:
    config = Config()
    # the ini parser would interpolate a % in the path
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
