"""Locks that last, connections that break, and a COMMIT whose answer is lost."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from airflow_kafka_eos.errors import LedgerUnavailableError
from airflow_kafka_eos.ledger import Ledger, database
from airflow_kafka_eos.ledger.location import parse
from airflow_kafka_eos.load import Verdict
from tests.ledger.ledger_support import LOAD, commit, manifest, prepare, sql


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONGEST_PAUSE", 0.05)


def test_a_lock_that_lasts_is_transient(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT", 0.1)
    holder = database.Database(url)
    with Ledger.open(url) as ledger:
        ledger.begin(LOAD, owner="x")
        with holder.engine.begin() as connection:
            connection.execute(text("UPDATE kafka_eos_loads SET reason = 'locked'"))
            with pytest.raises(LedgerUnavailableError, match=r"(?i)lock"):
                ledger.submit(LOAD, owner="y")
            assert len(ledger.attempts(LOAD)) == 1  # readers are not held up
        assert ledger.submit(LOAD, owner="y").number == 1
    holder.close()


def test_who_waits_for_a_locked_file_is_told_so_once_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nobody has set up logging: Python shows warnings on stderr by itself."""
    monkeypatch.setattr(database, "LOCK_TIMEOUT", 0.5)
    monkeypatch.setattr(database, "SAYS_SO_AFTER_S", 0.1)
    path = tmp_path / "ledger.db"
    opened = database.Database(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        opened.write(lambda c: c.execute(text("CREATE TABLE one (two INT)")))
        other.execute("BEGIN IMMEDIATE")
        began = time.time()
        with pytest.raises(LedgerUnavailableError, match="locked"):
            opened.write(lambda c: None)
        waited = time.time() - began
        said = [r for r in caplog.records if r.name == database.__name__ and r.levelname == "WARNING"]
        assert [r.getMessage() for r in said] == [
            f"the ledger sqlite:///{path} is locked: waiting for another process to end what it writes there; "
            "trying for up to 2 s"
        ]
        assert 1.9 < waited < 4, "the wait itself is as long as ever"
        assert said[0].created - began < 0.4
        results: list[int] = []
        writer = threading.Thread(target=lambda: results.append(opened.write(lambda c: 1)))
        writer.start()
        writer.join(0.3)
        other.execute("COMMIT")
        writer.join(60)
        assert results == [1], "what is locked no longer is written in what is left of the same try"
        assert opened.write(lambda c: c.execute(text("PRAGMA busy_timeout")).scalar_one()) == 500
    opened.close()


def test_a_lock_that_passes_is_waited_for(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    holder = database.Database(url)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(commit_again(ledger)))
    with holder.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_eos_loads SET reason = 'locked'"))
        thread.start()
        thread.join(0.2)
        assert results == []
    thread.join(60)
    holder.close()
    assert [r.verdict for r in results] == [Verdict.COMMIT]


def commit_again(ledger: Ledger) -> Any:
    return ledger.decide_commit(manifest(ledger, 1), decided_by="d")


_CONFLICT = {
    "postgresql": "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$",
    "mysql": "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'x'",
}
#: database -> (which connection is this, end that one)
_BREAK = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(:pid)"),
    "mysql": ("SELECT connection_id()", "KILL :pid"),
}


def test_a_conflict_is_tried_again(ledger: Ledger, url: str) -> None:
    """SQLITE_BUSY, PostgreSQL's serialization failure, MariaDB's deadlock: really raised by the database."""
    prepare(ledger)
    calls: list[int] = []
    rival = database.Database(url + "?timeout=0") if url.startswith("sqlite") else None

    def dual_write(connection: Connection) -> None:
        calls.append(1)
        if len(calls) > 1:
            return
        if rival is None:
            connection.execute(text(_CONFLICT[connection.dialect.name]))
        else:
            rival.engine.begin().__enter__()

    assert ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=dual_write).verdict is Verdict.COMMIT
    assert len(calls) == 2


def test_a_connection_that_breaks_is_made_again(ledger: Ledger, url: str) -> None:
    if url.startswith("sqlite"):
        return
    prepare(ledger)
    calls: list[int] = []

    def dual_write(connection: Connection) -> None:
        who, end = _BREAK[connection.dialect.name]
        pid = connection.execute(text(who)).scalar_one()
        calls.append(pid)
        if len(calls) == 1:
            sql(url, end, pid=pid)
        connection.execute(text("SELECT 1"))

    assert ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=dual_write).verdict is Verdict.COMMIT
    assert len(calls) == 2
    assert len(sql(url, "SELECT attempt_id FROM kafka_eos_decisions")) == 1


def test_connections_are_kept_where_that_is_asked_and_only_to_a_server(url: str, tmp_path: Path) -> None:
    if url.startswith("sqlite"):
        path = tmp_path / "kept.db"
        with Ledger.open(f"sqlite:///{path}", upgrade=True, keeps_connections=True) as kept:
            kept.begin(LOAD, owner="x")
            Ledger.open(f"sqlite:///{tmp_path}/other.db", upgrade=True).close()
            for old in tmp_path.glob("kept.db-*"):
                old.unlink()
            (tmp_path / "other.db").replace(path)
            assert kept.attempts(LOAD) == []
        return
    who = _BREAK[parse(url).get_backend_name()][0]

    def pids(opened: Ledger) -> set[int]:
        return {opened.database.read(lambda c: c.execute(text(who)).scalar_one()) for _ in range(3)}

    with Ledger.open(url) as each, Ledger.open(url, keeps_connections=True) as kept:
        assert (len(pids(each)), len(pids(kept))) == (3, 1)


def test_a_kept_connection_that_breaks_between_two_operations_is_made_again(url: str) -> None:
    if url.startswith("sqlite"):
        return
    who, end = _BREAK[parse(url).get_backend_name()]
    with Ledger.open(url, keeps_connections=True) as kept:
        pid = kept.database.read(lambda c: c.execute(text(who)).scalar_one())
        sql(url, end, pid=pid)
        assert kept.begin(LOAD, owner="x").number == 1


def test_a_kept_connection_that_only_reads_is_left(url: str) -> None:
    """The server behind it has become a standby, and the name leads to its successor."""
    if not url.startswith("postgresql"):
        return
    with Ledger.open(url, keeps_connections=True) as kept:
        kept.database.read(lambda c: c.execute(text("SET default_transaction_read_only = on")))
        assert kept.begin(LOAD, owner="x").number == 1


def test_an_sqlite_write_transaction_locks_before_it_reads(url: str) -> None:
    if not url.startswith("sqlite"):
        return
    opened = database.Database(url)
    path = url.removeprefix("sqlite:///")

    def work(_: Connection) -> None:
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

    opened.read(work)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        opened.write(work)
    opened.close()


class Proxy:
    """Between a client and PostgreSQL or MariaDB; once armed, it cuts the connection around the next COMMIT.

    ``cut`` is "before", "after" (the server commits, the client is not told) or "under way" (the client loses the
    connection while the server is at it); empty is not armed. ``arm_at`` is SQL text that arms it.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = ""
        self.arm_at: bytes | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._upstream)
        answers_lost = threading.Event()
        ended = threading.Event()

        def back() -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(65536):
                    if answers_lost.is_set():
                        break  # the server has answered, so it has committed; the client never hears of it
                    client.sendall(data)
            ended.set()

        thread = threading.Thread(target=back, daemon=True)
        thread.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.arm_at is not None and self.arm_at in data:
                    self.cut, self.arm_at = "after", None
                elif b"COMMIT" in data and self.cut:
                    how, self.cut = self.cut, ""
                    if how == "before":
                        break
                    answers_lost.set()
                    server.sendall(data)
                    if how == "under way":
                        client.shutdown(socket.SHUT_RDWR)
                    ended.wait(30)
                    break
                server.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # close alone says nothing while the other thread reads
            end.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def proxied(url: str) -> Iterator[tuple[Proxy, str] | None]:
    if url.startswith("sqlite"):
        yield None  # no network, no answer to lose
        return
    query = parse(url).query
    name = parse(url).database
    if url.startswith("mysql"):
        proxy = Proxy(str(query["unix_socket"]))
        yield proxy, f"mysql+pymysql://root@127.0.0.1:{proxy.port}/{name}?charset=utf8mb4"
    else:
        proxy = Proxy(f"{query['host']}/.s.PGSQL.{query['port']}")
        options = "sslmode=disable&gssencmode=disable"
        yield proxy, f"postgresql://postgres@127.0.0.1:{proxy.port}/{name}?{options}"
    proxy.close()


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_lost_answer_to_commit_is_found_out(url: str, proxied: tuple[Proxy, str] | None, cut: str) -> None:
    """Cut before: it was not committed and is done again. After: it was, and the second try finds it so."""
    if proxied is None:
        return
    proxy, through = proxied
    with Ledger.open(through) as ledger:
        prepare(ledger)
        calls: list[int] = []

        def dual_write(_: Connection) -> None:
            calls.append(1)
            proxy.cut = cut if len(calls) == 1 else ""

        row = ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=dual_write)
        assert row.verdict is Verdict.COMMIT
        assert len(calls) == (2 if cut == "before" else 1)
        assert len(sql(url, "SELECT attempt_id FROM kafka_eos_decisions")) == 1


def test_a_lost_answer_to_submit_gives_an_attempt_of_its_own(
    url: str, proxied: tuple[Proxy, str] | None
) -> None:
    """Nobody was told of attempt 1, but its COMMIT went through, so it is never given out again."""
    if proxied is None:
        return
    proxy, through = proxied
    with Ledger.open(url) as direct, Ledger.open(through) as ledger:
        direct.begin(LOAD, owner="b")
        proxy.arm_at = b"UPDATE kafka_eos_attempts"
        row = ledger.submit(LOAD, owner="s")
        assert [a.verdict for a in direct.attempts(LOAD)] == [Verdict.ABORT, None]
        assert row.number == 2 and proxy.arm_at is None and proxy.cut == ""


def test_operations_after_a_commit_need_no_pool(ledger: Ledger) -> None:
    commit(ledger)
    ledger.close()
    assert len(ledger.attempts(LOAD)) == 1
