"""Airflow connections for the command line: from the environment, a secrets backend, or Airflow's own database.

Importing Airflow takes seconds. Where no secrets backend is set, a connection is in the environment or in that
database, and both are read here as Airflow reads them; ``tests/cli/test_cli_connections.py`` holds both readings
against each other. What is not as it should be, Airflow itself is asked for.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from airflow_kafka_eos.cli.airflow_options import AskAirflow, airflow_home, airflow_option, without_airflow
from airflow_kafka_eos.cli.terminal import to_stderr
from airflow_kafka_eos.errors import ConfigurationError, TransientError

_TEXTS = ("conn_type", "description", "host", "login", "password", "schema")
_EXTRA = "__extra__"
_LOCK_TIMEOUT_S = 10
#: what a query of Airflow's own table of connections reads, by any driver
_COLUMNS = "conn_type, host, schema, login, password, port, extra, is_encrypted, is_extra_encrypted"


@dataclass(frozen=True, repr=False)
class Connection:
    """What of an Airflow connection commands read. Holds secrets: never printed."""

    conn_id: str
    conn_type: str | None = None
    host: str | None = None
    schema: str | None = None
    login: str | None = None
    password: str | None = None
    port: int | None = None
    extra: str | None = None

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """The extra, which is a JSON object.

        :raises ConfigurationError: it is none; it is not shown.
        """
        try:
            found = json.loads(self.extra) if self.extra else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigurationError(
                f"the extra of Airflow connection {self.conn_id!r} is no JSON object",
                remedy='Write it as {"bootstrap.servers": "host:9092"}',
            )
        return found


def airflow_connection(option: str, conn_id: str, without: str = "") -> Any:
    """The connection of that id.

    :param option: the argument that names it, for the error.
    :param without: what else there is where no Airflow is, for its remedy.
    :raises ConfigurationError: Airflow has no such connection here.
    :raises TransientError: Airflow's database does not answer.
    """
    try:
        found = _without_airflow(conn_id)
    except AskAirflow:
        found = _by_airflow(conn_id)
    if found is None:
        raise ConfigurationError(
            f"{option} {conn_id!r}: Airflow has no such connection here",
            remedy="Name one that `airflow connections list` shows on this machine, or set "
            f"AIRFLOW_CONN_{conn_id.upper()}{without}",
        )
    return found


def _by_airflow(conn_id: str) -> Any:
    from airflow.providers.common.compat.sdk import AirflowNotFoundException
    from airflow.sdk import BaseHook

    to_stderr()
    with suppress(AirflowNotFoundException):
        return BaseHook.get_connection(conn_id)
    # tasks ask the API server; a command line stands beside the database, where Airflow itself looks
    found = _of_database_by_airflow(conn_id)
    to_stderr()
    return found


def _of_database_by_airflow(conn_id: str) -> Any:
    if _missing_sqlite(airflow_option("database", "sql_alchemy_conn")):
        return None  # asking would create it
    try:
        from airflow.secrets.metastore import MetastoreBackend

        return MetastoreBackend().get_connection(conn_id)
    except Exception:  # no database here, or not upgraded: whatever it is, the connection cannot be read
        return None


def _without_airflow(conn_id: str) -> Connection | None:
    """
    :raises AskAirflow: something is set that only Airflow understands.
    """
    set_here = [
        without_airflow(*option)
        for option in (("secrets", "backend"), ("workers", "secrets_backend"), ("core", "multi_team"))
    ]
    if any((text or "").strip().lower() not in ("", "f", "false", "0") for text in set_here):
        raise AskAirflow
    if text := os.environ.get(f"AIRFLOW_CONN_{conn_id.upper()}", "").strip():
        try:
            return _of_json(conn_id, text) if text[0] == "{" else _of_uri(conn_id, text)
        except ValueError:
            raise AskAirflow from None
    return _of_database(conn_id)


def _of_json(conn_id: str, text: str) -> Connection:
    given = json.loads(text)
    extra, port = given.pop("extra", None), given.pop("port", None)
    if given.keys() - set(_TEXTS) or any(v is not None and not isinstance(v, str) for v in given.values()):
        raise AskAirflow
    given.pop("description", None)
    kind = _kind(given.pop("conn_type", None) or "") or None
    return Connection(
        conn_id,
        kind,
        port=int(port) if port else None,
        extra=None if not extra else extra if isinstance(extra, str) else json.dumps(extra),
        **given,
    )


def _of_uri(conn_id: str, uri: str) -> Connection:
    if uri.count("://") != 1:
        raise AskAirflow  # a protocol of the host's own, or none at all
    kind = urlsplit(uri).scheme
    parts = urlsplit(uri.replace(f"{kind}://", "//"))
    host = unquote(parts.hostname or "")
    if "/" in host:
        raise AskAirflow  # the folder of a socket
    extra = None
    if parts.query:
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        extra = query[_EXTRA] if _EXTRA in query else json.dumps(query)
    return Connection(
        conn_id,
        _kind(kind),
        host=host,
        schema=unquote(parts.path[1:]),
        login=unquote(parts.username) if parts.username else parts.username,
        password=unquote(parts.password) if parts.password else parts.password,
        port=parts.port,
        extra=extra,
    )


def _kind(text: str) -> str:
    return "postgres" if text == "postgresql" else text.replace("-", "_")


def _missing_sqlite(url: str) -> bool:
    return url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file()


def _of_database(conn_id: str) -> Connection | None:
    for section, key in (
        ("core", "sql_alchemy_conn"), ("database", "sql_alchemy_connect_args"), ("database", "sql_alchemy_schema"),
    ):  # fmt: skip
        if without_airflow(section, key):
            raise AskAirflow
    url = without_airflow("database", "sql_alchemy_conn") or f"sqlite:///{airflow_home()}/airflow.db"
    if _missing_sqlite(url):
        return None
    row = _row_of_sqlite(url, conn_id) if url.startswith("sqlite:///") else _row_of_server(url, conn_id)
    if row is None:
        return None
    kind, host, schema, login, password, port, extra, password_is_encrypted, extra_is_encrypted = row
    return Connection(
        conn_id,
        kind,
        host=host,
        schema=schema,
        login=login,
        password=_decrypted(password) if password_is_encrypted else password,
        port=port,
        extra=_decrypted(extra) if extra_is_encrypted else extra,
    )


def _row_of_sqlite(url: str, conn_id: str) -> Any:
    import sqlite3

    path = url.removeprefix("sqlite:///")
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_S)) as opened:
            return opened.execute(f"SELECT {_COLUMNS} FROM connection WHERE conn_id = ?", (conn_id,)).fetchone()
    except sqlite3.Error:
        raise AskAirflow from None


def _row_of_server(url: str, conn_id: str) -> Any:
    """
    :raises TransientError: the database does not answer.
    """
    from sqlalchemy import column, create_engine, select, table
    from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
    from sqlalchemy.pool import NullPool

    from airflow_kafka_eos.ledger.database import CONNECT_TIMEOUT

    names: list[Any] = [column(name.strip()) for name in _COLUMNS.split(",")]
    asked = select(*names).select_from(table("connection")).where(column("conn_id") == conn_id)
    arguments = {"connect_timeout": CONNECT_TIMEOUT} if url.startswith(("postgresql", "mysql")) else {}
    try:
        with create_engine(url, poolclass=NullPool, connect_args=arguments).connect() as opened:
            return opened.execute(asked).one_or_none()
    except (OperationalError, InterfaceError) as e:
        problem = type(e.orig).__name__
    except (SQLAlchemyError, ImportError, TypeError):
        raise AskAirflow from None
    # outside of the block: the driver's error quotes the address, and may quote more
    raise TransientError(
        f"Airflow's database, where connection {conn_id!r} is looked for, did not answer ({problem})",
        remedy=f"Check [database] sql_alchemy_conn on this machine, or set AIRFLOW_CONN_{conn_id.upper()}",
    )


def _decrypted(text: str | None) -> str | None:
    """What Airflow has encrypted with one of its keys, the newest first."""
    if not text:
        return text
    from cryptography.fernet import Fernet, InvalidToken, MultiFernet

    keys = [key.strip() for key in (without_airflow("core", "fernet_key") or "").split(",") if key.strip()]
    try:
        return MultiFernet([Fernet(key) for key in keys]).decrypt(text).decode()
    except (ValueError, InvalidToken):
        raise AskAirflow from None
