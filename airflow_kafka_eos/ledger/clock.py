"""The database's own clock: other machines' clocks are held against it."""

from __future__ import annotations

from sqlalchemy import text

from airflow_kafka_eos.ledger.database import Database

_NOW = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "mysql": "SELECT unix_timestamp(now(3))",
    "mariadb": "SELECT unix_timestamp(now(3))",
}


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
