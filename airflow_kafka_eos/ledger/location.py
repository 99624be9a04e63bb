"""Where the ledger is: its URL, which is a secret, and what of it may be shown.

The URL comes from the environment, or from an Airflow connection that somebody else has read: nothing here imports
Airflow.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_kafka_eos.errors import ConfigurationError

FILE_NAME = "kafka_eos_ledger.db"
#: The connection type of our own; its extra's ``backend`` names the kind of database, the first if none
LEDGER_CONN_TYPE = "kafka_eos_ledger"
BACKENDS = ("postgresql", "mysql", "mariadb", "sqlite")
#: Airflow's connection types and SQLAlchemy's names for them
_DIALECTS = {
    "postgres": "postgresql+psycopg2",
    "postgresql": "postgresql+psycopg2",
    "mysql": "mysql",
    "mariadb": "mariadb",
    "sqlite": "sqlite",
}
#: drivers in order of preference where the URL names none (SQLAlchemy's own default differs by version)
_DRIVERS = {
    "postgresql": ("psycopg2", "psycopg"),
    "mysql": ("MySQLdb", "pymysql"),
    "mariadb": ("MySQLdb", "pymysql"),
}
_DRIVER_NAMES = {"MySQLdb": "mysqldb"}
_SECRET_WORDS = ("password", "passwd", "pwd", "secret", "token")


def default_url() -> str:
    """The embedded ledger: an SQLite file in ``$AIRFLOW_HOME``, else in ``~/airflow``."""
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser().absolute()
    return f"sqlite:///{home / FILE_NAME}"


def ledger_url(connection: Any, use: str = "hold the ledger") -> str:
    """The SQLAlchemy URL, with password, of an Airflow connection.

    :param use: what the database is for, for the error.
    :raises ConfigurationError: a connection type that is no database of ours.
    """
    kind = connection.conn_type
    if kind == LEDGER_CONN_TYPE:
        kind = connection.extra_dejson.get("backend") or BACKENDS[0]
        if kind not in BACKENDS:
            raise ConfigurationError(
                f"connection {connection.conn_id!r} has backend {kind!r} in its extra",
                remedy=f"Set it to one of {', '.join(BACKENDS)}",
            )
    dialect = _DIALECTS.get(kind)
    if dialect is None:
        types = ", ".join(sorted((*_DIALECTS, LEDGER_CONN_TYPE)))
        # `airflow connections add --conn-type postgres` stores this one, with a warning, where no such provider is
        generic = " (Airflow stores generic for a type whose provider is not installed)" if kind == "generic" else ""
        raise ConfigurationError(
            f"connection {connection.conn_id!r} of type {connection.conn_type!r} cannot {use}{generic}",
            remedy=f"Use a connection of one of the types {types}; {LEDGER_CONN_TYPE} comes with this package",
        )
    if dialect == "sqlite":
        path = connection.host or connection.schema
        if not path:
            raise ConfigurationError(
                f"connection {connection.conn_id!r} has no path",
                remedy="Put the SQLite file's path into its host field",
            )
        return URL.create("sqlite", database=path).render_as_string(hide_password=False)
    query = {
        k: str(v)
        for k, v in connection.extra_dejson.items()
        if k.startswith(("ssl", "connect_", "application_"))
    }
    host, port = connection.host, connection.port
    if host and host.startswith("/") and dialect.startswith("postgres"):
        query["host"], host = host, None  # a Unix socket's directory: no URL has it in a host's place
        if port:
            query["port"], port = str(port), None
    return URL.create(
        dialect,
        username=connection.login,
        password=connection.password,
        host=host,
        port=port,
        database=connection.schema,
        query=query,
    ).render_as_string(hide_password=False)


def parse(url: str) -> URL:
    """Read a ledger's URL and name a driver that is installed.

    :raises ConfigurationError: without the URL in it, which may hold a password.
    """
    text = "postgresql://" + url[len("postgres://") :] if url.startswith("postgres://") else url
    parsed = None
    # raised below, so that no exception with the URL in it hangs on ours
    with suppress(ArgumentError, ValueError):
        parsed = make_url(text)
    if parsed is None or parsed.get_backend_name() not in ("sqlite", *_DRIVERS):
        raise ConfigurationError(
            "the ledger's URL is not an SQLAlchemy URL of SQLite, PostgreSQL or MySQL",
            remedy="Use sqlite:////path/file.db, postgresql://user:password@host/database or mysql://…",
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "the ledger's URL names an SQLite database in memory, which forgets its decisions",
            remedy="Name a file: sqlite:////path/file.db",
        )
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_absolute():
        raise ConfigurationError(
            f"the ledger's SQLite file {parsed.database!r} is relative: each working directory would have its own",
            remedy="Name an absolute path, with four slashes: sqlite:////path/file.db",
        )
    if "+" not in parsed.drivername and parsed.drivername in _DRIVERS:
        for module in _DRIVERS[parsed.drivername]:
            if find_spec(module) is not None:
                return parsed.set(drivername=f"{parsed.drivername}+{_DRIVER_NAMES.get(module, module)}")
    return parsed


def redacted(url: str) -> str:
    """The URL with every password as ``***``; for logs, the CLI and error messages."""
    try:
        parsed = parse(url)
    except ConfigurationError:
        return "<unreadable ledger URL>"
    query = {k: ("***" if _is_secret(k) else v) for k, v in parsed.query.items()}
    return parsed.set(query=query).render_as_string(hide_password=True)


def scrub(text: str, url: URL) -> str:
    """Take the URL's secrets out of a driver's message."""
    secrets = secrets_of(url)
    for secret in sorted(
        {f(s) for s in secrets if s for f in (str, quote, quote_plus)}, key=len, reverse=True
    ):
        text = text.replace(secret, "***")
    return text


def secrets_of(url: URL) -> list[str]:
    """Passwords and their like in a URL."""
    secrets = [str(url.password or "")]
    for key, value in url.query.items():
        if _is_secret(key):
            secrets += [value] if isinstance(value, str) else list(value)
    return secrets


def _is_secret(key: str) -> bool:
    return any(word in key.lower() for word in _SECRET_WORDS)
