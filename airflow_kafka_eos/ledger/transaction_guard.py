"""Keep an author's SQL inside of the database transaction that it was given, and that transaction durable.

Rule: dual-write-with-the-decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from airflow_kafka_eos.dual_write import commits_on_mysql, ends_transaction
from airflow_kafka_eos.errors import ConfigurationError, DualWriteError

_GUARDED = "kafka_eos_guarded"
_SAVEPOINT = "kafka_eos_dual_write"
# no such savepoint, no transaction; SQLite has no code of its own for it
_SPLIT = {"3B001", "25P01", 1305}
_PG_FAILED = "25P02"


class SplitTransactionError(Exception):
    """The transaction that was given is over: something in it has been committed, or rolled back, on its own."""


def install(engine: Engine) -> None:
    """Have the engine's connections refuse COMMIT and ROLLBACK while :func:`one_transaction` holds them."""
    event.listen(engine, "commit", _check_end)
    event.listen(engine, "rollback", _check_end)
    event.listen(engine, "before_cursor_execute", _check_statement)


def _check_end(connection: Connection) -> None:
    if connection.get_execution_options().get(_GUARDED, False):
        raise _refusal("commits or rolls back the connection")


def _check_statement(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    if not connection.get_execution_options().get(_GUARDED, False):
        return
    if ends_transaction(statement):
        raise _refusal("runs COMMIT, ROLLBACK, BEGIN or the like")
    if connection.dialect.name in ("mysql", "mariadb") and (word := commits_on_mysql(statement)):
        raise DualWriteError(
            f"the author's SQL runs {word}, which MySQL commits by itself: rows and decision would no longer be one. "
            "Nothing is decided",
            remedy="Leave out what changes definitions (CREATE, ALTER, DROP, TRUNCATE, …), locks or users; DELETE FROM "
            "empties a table within the transaction. Then clear prepare",
        )


def _refusal(what: str) -> DualWriteError:
    return DualWriteError(
        f"the author's SQL {what}: rows and decision would no longer be one. Nothing is decided",
        remedy="Leave that to the ledger, which commits rows and decision together; then clear prepare",
    )


@contextmanager
def one_transaction(connection: Connection) -> Iterator[None]:
    """What runs inside can end the transaction neither by SQLAlchemy nor by a statement.

    What gets past SQLAlchemy (the driver's own connection, several statements in one text, MySQL's implicit commits)
    is noticed: a savepoint lives as long as its transaction, on every database.

    :raises DualWriteError: it was tried; nothing has ended.
    :raises SplitTransactionError: it has happened.
    """
    connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
    connection.execution_options(**{_GUARDED: True})
    try:
        yield
    finally:
        connection.execution_options(**{_GUARDED: False})
    problem, split = "", False
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
    except InvalidRequestError:
        problem = "it tried to end the transaction, and hid that this was refused"
    except DBAPIError as e:
        code = error_code(e)
        split = code in _SPLIT or "no such savepoint" in str(e.orig)
        if code == _PG_FAILED:
            problem = "it went on after a statement of it had failed"
        elif not split:
            raise  # a lost connection
    if split:
        raise SplitTransactionError
    if problem:
        raise DualWriteError(
            f"the author's SQL cannot be relied on: {problem}",
            remedy="Do not catch the errors of its statements, and leave COMMIT and ROLLBACK to the ledger; then "
            "clear prepare",
        )


def insist_on_durability(connection: Connection) -> None:
    """What the transaction commits must outlive a crash of the database, whatever the author has set.

    :raises ConfigurationError: it cannot be had.
    """
    name = connection.dialect.name
    if name == "postgresql":
        connection.exec_driver_sql(
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
    # cannot be changed inside of a transaction: 2 is FULL
    elif name == "sqlite" and int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one()) < 2:
        raise ConfigurationError(
            "the ledger's SQLite connection is not at synchronous=FULL: a crash could take a decision back",
            remedy="Leave PRAGMA synchronous alone",
        )


def error_code(error: DBAPIError) -> str | int | None:
    """MySQL's number, else the SQLSTATE; None where the driver gives neither (SQLite, a connection that broke).

    pymysql has an SQLSTATE too, from 1.2 on, which says less than the number: HY000 for most.
    """
    original: Any = error.orig
    if type(original).__module__.partition(".")[0] in ("MySQLdb", "pymysql"):
        number = original.args[0] if original.args else None
        return number if isinstance(number, int) else None
    state = getattr(original, "pgcode", None) or getattr(original, "sqlstate", None)
    return state if isinstance(state, str) else None
