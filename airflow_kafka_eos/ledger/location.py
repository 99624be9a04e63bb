"""Where the ledger is: its URL, which is a secret, and what of it may be shown. Reads the environment only."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, quote_plus

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_kafka_eos.errors import ConfigurationError

FILE_NAME = "kafka_eos_ledger.db"
_SECRET_WORDS = ("password", "passwd", "pwd", "secret", "token")
#: drivers in order of preference where the URL names none (SQLAlchemy's own default differs by version)
_DRIVERS = {
    "postgresql": ("psycopg2", "psycopg"),
    "mysql": ("MySQLdb", "pymysql"),
    "mariadb": ("MySQLdb", "pymysql"),
}
_DRIVER_NAMES = {"MySQLdb": "mysqldb"}


def default_url() -> str:
    """The embedded ledger: an SQLite file in ``$AIRFLOW_HOME``, else in ``~/airflow``."""
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser().absolute()
    return f"sqlite:///{home / FILE_NAME}"


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


def secrets_of(url: URL) -> list[str]:
    """Passwords and their like in a URL."""
    secrets = [str(url.password or "")]
    for key, value in url.query.items():
        if _is_secret(key):
            secrets += [value] if isinstance(value, str) else list(value)
    return secrets


def scrub(text: str, url: URL) -> str:
    """Take the URL's secrets out of a driver's message."""
    secrets = secrets_of(url)
    for secret in sorted(
        {f(s) for s in secrets if s for f in (str, quote, quote_plus)}, key=len, reverse=True
    ):
        text = text.replace(secret, "***")
    return text


def _is_secret(key: str) -> bool:
    return any(word in key.lower() for word in _SECRET_WORDS)
