"""One database transaction at a time: engine settings, retries and errors. Knows no table.

SQLite: WAL, ``synchronous=FULL``, foreign keys, and every write transaction starts with BEGIN IMMEDIATE: SQLite
has no row locks, and the driver's deferred transactions would let two deciders read before either writes.
PostgreSQL and MySQL: READ COMMITTED and SELECT … FOR UPDATE of the load's row. ``synchronous_commit = off``
is overridden: a decision that a crash can take back is no decision.

No connection pool: an operation is rare and short, hundreds of waiting tasks hold no idle connection, a fork
inherits none, and a connection that died in between cannot be met. But for a streaming query's driver, which makes
a dozen operations for each batch: it keeps connections to a server, for a minute at most. Never to an SQLite file: it
would go on in the one that was put away, where another one was put in its place.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Insert, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.pool import NullPool

from airflow_kafka_eos.errors import ConfigurationError, LedgerNotReadyError, LedgerUnavailableError
from airflow_kafka_eos.ledger import transaction_guard
from airflow_kafka_eos.ledger.location import parse, redacted, scrub
from airflow_kafka_eos.ledger.transaction_guard import error_code

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: seconds that SQLite waits for another writer, and PostgreSQL or MySQL for a row lock; ``timeout=`` in an
#: SQLite URL overrides the former
LOCK_TIMEOUT: float = 20
CONNECT_TIMEOUT = 10
#: how often an operation is tried before LedgerUnavailableError; the longest pause between tries in seconds
TRIES = 4
LONGEST_PAUSE = 1.0
#: Who waits longer than this for another writer of an SQLite file is told so, once, in the middle of the wait.
SAYS_SO_AFTER_S = 5.0
#: seconds that a kept connection is used: what stands between drops idle ones without a word, and a server that is
#: a standby by now is left
KEPT = 60
#: Which of this package's extras brings the driver that a connection of that type asks for.
_EXTRAS = {
    "postgresql": " (`pip install 'airflow-kafka-eos[postgres]'` brings psycopg2)",
    "mysql": " (`pip install 'airflow-kafka-eos[mysql]'` brings pymysql)",
    "mariadb": " (`pip install 'airflow-kafka-eos[mysql]'` brings pymysql)",
}
# serialization failure and deadlock, lock not available, shutdown and restart, resources, connection, standby
_PG_PASSING = ("40", "55P03", "57P", "53", "08", "25006")
_PG_NO_PRIVILEGE = "42501"
_MYSQL_NO_PRIVILEGE = {1044, 1142, 1143}
_MYSQL_PASSING = {1040, 1205, 1213, 1927, 2002, 2003, 2006, 2013, 2055, 4031}
_READ = "kafka_eos_read"
_WAITS_FOR = "kafka_eos_waits_for"
_WRITE = "BEGIN IMMEDIATE"  # SQLite: nobody else writes between what is read and what is written for it
_SQLITE_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
_WALLS = {
    "full": "Make room on the database's disk (or raise max_page_count), then try again: what was decided is kept",
    "read-only": "Make the SQLite file and its folder writable for whoever runs Airflow's tasks, then try again",
}
_NOW = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT unix_timestamp(now(3))",
    "mariadb": "SELECT unix_timestamp(now(3))",
}


class Database:
    """A database by its URL; :meth:`write` and :meth:`read` run a function in one transaction each.

    :param keeps_connections: to a server, instead of a new one for each transaction.
    """

    def __init__(self, url: str, *, keeps_connections: bool = False) -> None:
        self.url = parse(url)
        self.shown = redacted(url)
        self.engine = _make_engine(self.url, keeps_connections)
        sqlite = self.url.get_backend_name() == "sqlite"
        self._file = Path(self.url.database or "") if sqlite else None

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a write transaction and commit it.

        It is run again after a lock, serialization or connection error, also when the answer to COMMIT was
        lost: ``work`` must be a compare-and-set that finds its own result when it comes a second time.

        :raises LedgerUnavailableError: after the last try; :class:`LedgerNotReadyError` where the file is none.
        """
        return self._run(work, self.engine)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a read transaction.

        :raises LedgerUnavailableError: as :meth:`write`.
        """
        return self._run(work, self.engine.execution_options(**{_READ: True}))

    @property
    def is_missing(self) -> bool:
        """True when there is no SQLite file yet; merely looking must not create one at a mistyped path."""
        return self._file is not None and not self._file.exists()

    def make_directory(self) -> None:
        """Make the directory of an SQLite file."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        self.engine.dispose()

    def _run(self, work: Callable[[Connection], T], engine: Engine) -> T:
        text, refused, wall, is_none = "", False, "", False
        for number in range(TRIES):
            if number:
                time.sleep(random.uniform(0.5, 1) * min(LONGEST_PAUSE, 0.05 * 4**number))
            try:
                connected = False
                with engine.connect() as connection:
                    if not number:  # tries behind it wait as well, and it has been said
                        connection.execution_options(**{_WAITS_FOR: self.shown})
                    with connection.begin():
                        connected = True
                        return work(connection)
            except (IntegrityError, DataError, NotSupportedError):
                raise  # not the database's condition, but what was written: of `dual_write`, or a fault of ours
            except (DatabaseError, InterfaceError) as e:
                text = scrub(f"{type(e.orig).__name__}: {e.orig}".strip(), self.url)
                wrong = is_wrong_sql(e)
                refused = is_refused(e) or (wrong and not connected)
                if wrong and not refused:
                    raise
                wall, is_none = _wall(e), _is_no_database(e)
                if refused or wall or not is_passing(e):
                    break
                # a kept connection is to a server that stops, or has become a standby
                self.engine.dispose()
        # outside of the except block: the driver's own exception must not hang on ours, it may quote the URL
        if refused:
            raise ConfigurationError(
                f"the ledger {self.shown} refuses its user or its options ({text})",
                remedy="Correct the URL, or grant SELECT, INSERT, UPDATE and DELETE on the ledger's tables",
            )
        if is_none:
            raise LedgerNotReadyError(
                f"the ledger {self.shown} is a file that is no SQLite database ({text}); nothing was written",
                remedy="Correct the URL; or, if it was the ledger, restore it from a backup",
            )
        if wall:
            raise LedgerUnavailableError(
                f"the ledger {self.shown} is {wall} ({text}); nothing was written", remedy=_WALLS[wall]
            )
        raise LedgerUnavailableError(
            f"the ledger {self.shown} did not answer ({text}); whether it committed is not known",
            remedy="Make the database reachable and try again: every ledger operation may be repeated",
        )


def insert_first(connection: Connection, row: Insert) -> bool:
    """Insert a row, and go on in the same transaction where another one is there already.

    Behind a savepoint, for PostgreSQL ends a transaction by any error. It is gone back to behind a conflict only: by
    a full disk or a failing one SQLite has rolled back everything, and to ask for a savepoint then would replace the
    error that says so by "no such savepoint".

    :returns: False where somebody else was first.
    """
    savepoint = connection.begin_nested()
    try:
        connection.execute(row)
    except IntegrityError:
        savepoint.rollback()
        return False
    savepoint.commit()
    return True


def is_passing(error: DBAPIError) -> bool:
    """True when the same transaction may succeed if it is run again."""
    original: Any = error.orig
    code = error_code(error)
    if isinstance(code, str):
        return code.startswith(_PG_PASSING)
    name = type(original).__module__.partition(".")[0]
    if name == "sqlite3":
        return _sqlite_code(original) in _SQLITE_BUSY
    if name in ("MySQLdb", "pymysql"):
        return code in _MYSQL_PASSING
    return True  # no code at all: the connection could not be made, or broke


def is_wrong_sql(error: DBAPIError) -> bool:
    """True for a fault in the statement, which only `dual_write` can bring in once the schema is checked."""
    # SQLite calls a missing table an OperationalError; its code SQLITE_ERROR (1) is for faulty statements
    return isinstance(error, ProgrammingError) or getattr(error.orig, "sqlite_errorcode", 0) == 1


def is_refused(error: DBAPIError) -> bool:
    """True when the database user lacks a privilege."""
    code = error_code(error)
    return code == _PG_NO_PRIVILEGE or code in _MYSQL_NO_PRIVILEGE


def _wall(error: DBAPIError) -> str:
    """Why nothing can be written, where trying at once again cannot help; else an empty text."""
    code = error_code(error)
    # SQLite's READONLY and FULL; PostgreSQL's disk_full
    low = _sqlite_code(error.orig)
    return "full" if low == 13 or code == "53100" else "read-only" if low == 8 else ""


def _is_no_database(error: DBAPIError) -> bool:
    """True for a file of something else: a mistyped path, or one that was overwritten."""
    return _sqlite_code(error.orig) == 26  # SQLITE_NOTADB


def _sqlite_code(original: BaseException | None) -> int:
    """SQLite's primary result code; 0 for another driver's error. Its low byte: an extended code has more."""
    return int(getattr(original, "sqlite_errorcode", 0)) & 0xFF


def _make_engine(url: URL, keeps_connections: bool) -> Engine:
    backend = url.get_backend_name()
    arguments: dict[str, Any] = {}
    keeps = keeps_connections and backend != "sqlite"
    options: dict[str, Any] = {"pool_recycle": KEPT} if keeps else {"poolclass": NullPool}
    if backend == "sqlite":
        arguments["timeout"] = LOCK_TIMEOUT
    else:
        options["isolation_level"] = "READ COMMITTED"
        if url.get_driver_name() in ("psycopg2", "psycopg", "pymysql", "mysqldb"):
            arguments["connect_timeout"] = CONNECT_TIMEOUT
    arguments = {k: v for k, v in arguments.items() if k not in url.query}
    missing = ""
    try:
        engine = create_engine(url, hide_parameters=True, connect_args=arguments, **options)
    except ImportError as e:
        missing = e.name or "the database driver"
    except ArgumentError:
        missing = f"with the dialect {url.drivername}"
    if missing:
        raise ConfigurationError(
            f"the ledger {url.render_as_string()} needs the Python package {missing}, which is not installed",
            remedy=f"Install {missing}{_EXTRAS.get(backend, '')}, or name another driver in the URL",
        )
    _set_up(engine, backend)
    return engine


def _set_up(engine: Engine, backend: str) -> None:
    transaction_guard.install(engine)
    if backend == "sqlite":
        event.listen(engine, "connect", _connect_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    elif backend == "postgresql":
        event.listen(engine, "connect", _connect_postgresql)
    else:
        event.listen(engine, "connect", _connect_mysql)


def _connect_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself; _begin_sqlite does
    cursor = connection.cursor()
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_READ, False):
        connection.exec_driver_sql("BEGIN")
        return
    shown = options.get(_WAITS_FOR)
    if shown is None or not _begin_soon(connection.connection.driver_connection, shown):
        connection.exec_driver_sql(_WRITE)


def _begin_soon(connection: Any, shown: str) -> bool:
    """Begin to write as far as that takes no longer than :data:`SAYS_SO_AFTER_S`; else say so, and leave the rest.

    Not by a timer: its thread would be there while a task forks.

    :param connection: the driver's.
    :returns: whether it has begun. If not, the connection waits for what is left of its timeout.
    """
    whole = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    soon = int(SAYS_SO_AFTER_S * 1000)
    if whole <= soon:
        return False
    connection.execute(f"PRAGMA busy_timeout = {soon}")
    try:
        connection.execute(_WRITE)
    except Exception as e:
        if _sqlite_code(e) in _SQLITE_BUSY:
            _log.warning(
                "the ledger %s is locked: waiting for another process to end what it writes there; trying for up to "
                "%g s", shown, TRIES * whole / 1000,
            )  # fmt: skip
            whole -= soon
        return False  # any other error comes again, and is told as all are
    finally:
        connection.execute(f"PRAGMA busy_timeout = {whole}")
    return True


def _connect_postgresql(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET lock_timeout = {int(LOCK_TIMEOUT * 1000)}")
    # stronger settings (remote_apply) are left as they are
    cursor.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    )
    cursor.close()
    connection.commit()


def _connect_mysql(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {int(LOCK_TIMEOUT)}")
    cursor.close()
    connection.commit()


def now_s(url: str) -> float | None:
    """Seconds since the epoch by the database server's clock; None where there is no server (SQLite).

    :raises LedgerUnavailableError: the database does not answer.
    """
    database = Database(url)
    try:
        asking = _NOW.get(database.url.get_backend_name())
        return None if asking is None else float(database.read(lambda c: c.execute(text(asking)).scalar_one()))
    finally:
        database.close()
