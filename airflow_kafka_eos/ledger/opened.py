"""A ledger's database, from opening it to closing it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection

from airflow_kafka_eos.errors import LedgerUnavailableError, OtherLedgerError
from airflow_kafka_eos.ledger import queries
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.ledger.location import default_url, redacted
from airflow_kafka_eos.ledger.revision import current, is_current, read_checked

T = TypeVar("T")


def _other(shown: str, why: str) -> OtherLedgerError:
    return OtherLedgerError(f"the ledger {shown} is not the one that this load is noted in: {why}")


class OpenLedger:
    """What every operation of the ledger needs: its database, and its id."""

    def __init__(self, database: Database, ledger_id: str) -> None:
        self._database = database
        self._ledger_id = ledger_id

    @classmethod
    def open(cls, url: str, *, upgrade: bool | None = None) -> Self:
        """Open the ledger at an SQLAlchemy URL (SQLite file, PostgreSQL, MySQL).

        :param upgrade: create or upgrade it. None: the embedded SQLite default only.
        :raises LedgerUnavailableError: unreachable, or not upgraded yet.
        :raises ConfigurationError: a bad URL, a missing driver, or a ledger of a newer version.
        """
        database = Database(url)
        if (url == default_url() if upgrade is None else upgrade) and not is_current(database):
            from airflow_kafka_eos.ledger import migrate  # Alembic; nearly always the ledger is up to date

            migrate.upgrade(url)
        return cls(database, read_checked(database, queries.ledger_id))

    @classmethod
    def open_existing(cls, url: str, ledger_id: str | None = None) -> Self:
        """Open a ledger that others work with, from a process that may have another Airflow home than theirs.

        None is ever made here, nor upgraded: an empty one would answer that there is nothing to do.

        :param ledger_id: which one it has to be; None: that is not known.
        :raises OtherLedgerError: there is none, or it is another one.
        :raises LedgerUnavailableError: unreachable, or not upgraded yet.
        :raises ConfigurationError: a bad URL, a missing driver, or a ledger of a newer version.
        """
        try:
            opened = cls.open(url, upgrade=False)
        except LedgerUnavailableError:
            if current(url) is None:
                raise _other(redacted(url), "there is none") from None
            raise
        if ledger_id is not None and opened.ledger_id != ledger_id:
            opened.close()
            raise _other(redacted(url), f"its id is {opened.ledger_id}, not {ledger_id}")
        return opened

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database.shown!r}, {self._ledger_id})"

    @property
    def where(self) -> str:
        """Its URL, without a password."""
        return self._database.shown

    @property
    def ledger_id(self) -> str:
        """10 random hex characters, part of every transactional id (rule: only-our-ids)."""
        return self._ledger_id

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._database.write(work)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._database.read(work)
