"""Dual write (KIP-939): what an author has run in the database transaction that records the decision. Values only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_kafka_eos.errors import ConfigurationError

# nothing is given back where no word follows: each comment more would take twice as long, with the load's row locked
_SPACE = r"\s|(?:--|#)[^\n]*(?:\n|$)|(?>/\*.*?\*/)"
_COMMENTS = rf"(?:;|{_SPACE})*+"
_ENDS = r"(?:COMMIT|ROLLBACK(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b))\b"
_CONTROL = re.compile(
    rf"{_COMMENTS}(?:{_ENDS}|(?:BEGIN|END|ABORT|START\s+TRANSACTION|PREPARE\s+TRANSACTION)\b)",
    re.IGNORECASE | re.DOTALL,
)
# what commits the transaction that it stands in, on MySQL and MariaDB: what changes definitions, locks and users
_TEMPORARY = rf"(?:{_SPACE})++(?:OR\s+REPLACE\s+)?TEMPORARY\b"
_COMMITS_ON_MYSQL = re.compile(
    rf"{_COMMENTS}(?=(?P<word>\w+))(?:(?:CREATE|DROP)\b(?!{_TEMPORARY}|\s+PREPARE\b)"
    r"|SET\b[^;]*\bAUTOCOMMIT\b|SET\s+PASSWORD\b|LOAD\s+INDEX\b|ANALYZE\s+(?:(?:NO_WRITE_TO_BINLOG|LOCAL)\s+)?TABLE\b"
    r"|(?:ALTER|CACHE|CHANGE|CHECK|FLUSH|GRANT|INSTALL|LOCK|OPTIMIZE|RENAME|REPAIR|RESET|REVOKE|START|STOP|TRUNCATE"
    r"|UNINSTALL|UNLOCK|XA)\b)",
    re.IGNORECASE | re.DOTALL,
)
_NONE: Mapping[str, Any] = {}
# BEGIN and END stand behind a semicolon in a body of PL/pgSQL too, where COMMIT could not work either
_CONTROL_BEHIND = re.compile(rf";{_COMMENTS}{_ENDS}", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """One SQL statement; ``:name`` in it is a parameter, ``\\:`` a colon.

    :param parameters: by name. Those of the load (:mod:`airflow_kafka_eos.ledger.dual_write`) need not be given.
    """

    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DualWrite:
    """The author's part: the statements in their order, then the callable.

    :param call: gets the SQLAlchemy connection and the :class:`~airflow_kafka_eos.manifest.Manifest`. It may run again
        after a rollback, so nothing but the connection may keep what it does.
    """

    statements: tuple[Statement, ...] = ()
    call: Callable[[Any, Any], object] | None = None

    @classmethod
    def of(cls, sql: Any, call: Callable[[Any, Any], object] | None) -> DualWrite | None:
        """What an author's ``dual_write_sql`` and ``dual_write`` say; None for neither.

        :param sql: a statement as text, or a list of texts, pairs (text, parameters) and mappings with the keys ``sql``
            and ``parameters``.
        :raises ConfigurationError: anything else, or a statement that ends the transaction.
        """
        if call is not None and not callable(call):
            raise ConfigurationError(
                f"dual_write={call!r} cannot be called",
                remedy="Pass a function of the SQLAlchemy connection and the manifest; SQL goes into dual_write_sql",
            )
        given = [] if sql is None else [sql] if isinstance(sql, (str, Mapping)) else sql
        if not isinstance(given, (list, tuple)) or (sql is not None and not given):
            raise _unusable(sql, "dual_write_sql")
        statements = tuple(_statement(one, f"dual_write_sql statement {n}") for n, one in enumerate(given, 1))
        return cls(statements, call) if statements or call is not None else None


def ends_transaction(sql: str) -> bool:
    """True for COMMIT, ROLLBACK, BEGIN and their like; savepoints may come and go."""
    return _CONTROL.match(sql) is not None


def commits_on_mysql(sql: str) -> str:
    """The first word of a statement that MySQL and MariaDB commit by themselves, with all before it; else empty."""
    found = _COMMITS_ON_MYSQL.match(sql)
    return "" if found is None else found["word"].upper()


def _statement(given: Any, where: str) -> Statement:
    sql, parameters = given, _NONE
    if isinstance(given, Mapping):
        unknown = sorted(map(str, set(given) - {"sql", "parameters"}))
        if unknown:
            raise ConfigurationError(
                f"{where} has the unknown key {unknown[0]!r}", remedy="Its keys are sql and parameters"
            )
        sql, parameters = given.get("sql"), given.get("parameters") or {}
    elif isinstance(given, (list, tuple)) and len(given) == 2:
        sql, parameters = given
    if not isinstance(sql, str) or not sql.strip() or not isinstance(parameters, Mapping):
        raise _unusable(given, where)
    if ends_transaction(sql) or _CONTROL_BEHIND.search(sql):
        raise ConfigurationError(
            f"{where} begins or ends a transaction: rows and decision would no longer be one",
            remedy="Leave COMMIT, ROLLBACK and BEGIN out: the decision's own transaction is committed behind it. A "
            "text that holds such a word belongs into a parameter",
        )
    return Statement(sql, dict(parameters))


def _unusable(given: Any, where: str) -> ConfigurationError:
    # the value may hold an author's data: its type is enough
    return ConfigurationError(
        f"{where} of type {type(given).__name__} is no SQL",
        remedy="Pass a text, or a list of texts and of pairs (text, {name: value})",
    )
