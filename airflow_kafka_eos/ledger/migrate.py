"""Which revision a ledger's schema has, and bringing it up to date, with a version table of Alembic's own.

Each step of a load asks for the revision, and importing Alembic takes longer: so it is imported where a schema changes.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from sqlalchemy import Connection, String, column, insert, inspect, select, table, text

from airflow_kafka_eos.errors import ConfigurationError, LedgerNotReadyError, LedgerUnavailableError
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.tables import REVISION, VERSION_TABLE, ledger, metadata

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

T = TypeVar("T")

_VERSION = select(column("version_num", String)).select_from(table(VERSION_TABLE))
#: any number that no other application's advisory lock is likely to have
_ADVISORY_LOCK = 5_939_511_890
_MYSQL_LOCK = "kafka_eos_ledger_upgrade"
_IF_LOADS_HAVE_RUN = (
    "If loads have run already, create none: in a new ledger all of them would be loaded again. They use another one "
    "(ledger_conn_id), or its database came back empty, and has to be restored"
)
# alembic.context is a global of the process: two threads cannot run env.py at once
_one_at_a_time = threading.Lock()


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
    _check_known(revision)
    upgrade = "`airflow-kafka-eos ledger upgrade` once, then try again"
    if revision is None:
        # nothing finds out later that an empty one took another's place: all would be loaded again
        raise LedgerNotReadyError(
            f"the ledger {shown} has not been created yet", remedy=f"{_IF_LOADS_HAVE_RUN}. Else run {upgrade}"
        )
    raise LedgerNotReadyError(f"the ledger {shown} is at revision {revision}, not {REVISION}", remedy=f"Run {upgrade}")


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
    # it goes with the connection, which is closed behind the commit: released here, whoever waits for it would not see
    # yet what was made, and make it once more
    revision = read_revision(connection)
    if revision == REVISION:
        return
    scripts = _check_known(revision)
    with _silent_alembic():
        if revision is None:
            _create(connection, scripts)
        else:
            _migrate(connection, scripts)


def _create(connection: Connection, scripts: ScriptDirectory) -> None:
    """Make the tables, or go on where this was killed: for MySQL, which commits each change of a schema by itself.

    Each statement is done whole or not at all (InnoDB's atomic DDL: MySQL 8, MariaDB 10.6). The ledger's id comes
    last: it is committed together with the revision.
    """
    from alembic.migration import MigrationContext

    for each in metadata.sorted_tables:
        each.create(connection, checkfirst=True)
        for index in each.indexes:
            index.create(connection, checkfirst=True)
    MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).stamp(scripts, "head")
    own = secrets.token_hex(5)  # another deployment's ids never parse as ours (rule: only-our-ids)
    moment = datetime.now(UTC).isoformat(timespec="microseconds")
    connection.execute(insert(ledger).values(id=1, ledger_id=own, created_at=moment))


def _migrate(connection: Connection, scripts: ScriptDirectory) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    # the ini parser would interpolate a % in the path
    config.set_main_option("script_location", scripts.dir.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


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


def _check_known(revision: str | None) -> ScriptDirectory:
    """The revisions.

    :raises ConfigurationError: this version of the package does not know that one.
    """
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).parent / "migrations"))
    if revision is not None and revision not in {known.revision for known in scripts.walk_revisions()}:
        raise ConfigurationError(
            f"the ledger is at revision {revision}, which this version of airflow-kafka-eos does not know",
            remedy="Install the version of airflow-kafka-eos that upgraded the ledger, everywhere",
        )
    return scripts
