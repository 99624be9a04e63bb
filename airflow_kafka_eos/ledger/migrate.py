"""Bringing a ledger's schema up to date, by Alembic, with a version table of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from airflow_kafka_eos.errors import ConfigurationError, LedgerUnavailableError
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.revision import is_current, read_revision
from airflow_kafka_eos.ledger.tables import REVISION

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
        if is_current(database):
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
        if revision == REVISION:
            return
        check_revision_known(revision)
        config = _config()
        config.attributes["connection"] = connection
        with _silent_alembic():
            command.upgrade(config, "head")
    finally:
        if mysql:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": _MYSQL_LOCK})


@contextmanager
def _silent_alembic() -> Iterator[None]:
    """It tells of its context and of each step at INFO; a level that somebody has set stays."""
    logger = logging.getLogger("alembic")
    if logger.level != logging.NOTSET:
        yield
        return
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(logging.NOTSET)


def check_revision_known(revision: str | None) -> None:
    """
    :raises ConfigurationError: this version of the package does not know the revision.
    """
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
