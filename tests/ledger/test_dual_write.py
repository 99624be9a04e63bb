"""KIP-939's dual write: the author's rows and the decision are one database transaction."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from airflow_kafka_eos.dual_write import DualWrite
from airflow_kafka_eos.errors import (
    ConfigurationError,
    DualWriteError,
    InDoubtError,
    LedgerUnavailableError,
    NotFinishedError,
    UndecidableError,
)
from airflow_kafka_eos.ledger import AttemptRow, Ledger, database, decisions
from airflow_kafka_eos.ledger import dual_write as beside
from airflow_kafka_eos.ledger.location import parse
from airflow_kafka_eos.ledger.transaction_guard import insist_on_durability
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.protocol.cleanup.poll import VisiblePoll
from airflow_kafka_eos.protocol.stages.decide import undecided_attempt
from tests.ledger.ledger_support import LOAD, manifest, prepare, sql
from tests.ledger.test_ledger_database import Proxy

INSERT = "INSERT INTO marts VALUES (:id, :load_key, :records)"
SECRET = "s3cr3t-value"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONGEST_PAUSE", 0.05)


@pytest.fixture
def prepared(ledger: Ledger, url: str) -> Ledger:
    """An attempt that can be decided, and a table of the author's."""
    sql(url, "CREATE TABLE marts (id INTEGER PRIMARY KEY, load_key VARCHAR(100), records INTEGER CHECK (records > 0))")
    prepare(ledger)
    return ledger


def decide(ledger: Ledger, dual_write_sql: Any = None, dual_write: Any = None, **more: Any) -> AttemptRow:
    wanted = DualWrite.of(dual_write_sql, dual_write)
    assert wanted is not None
    return beside.decide_beside(ledger, manifest(ledger, 1), wanted, decided_by="decide", **more)


def rows(url: str) -> list[Any]:
    return sql(url, "SELECT id, load_key, records FROM marts ORDER BY id")


def is_decided(ledger: Ledger) -> bool:
    row = ledger.attempt(LOAD, 1)
    assert row is not None
    return row.verdict is Verdict.COMMIT


def retried(ledger: Ledger, url: str) -> None:
    """A failed dual write leaves an attempt that can be decided, and none of its rows."""
    assert (is_decided(ledger), rows(url)) == (False, [])
    decide(ledger, [(INSERT, {"id": 1})])
    assert (is_decided(ledger), rows(url)) == (True, [(1, LOAD.key, 20)])


def test_statements_and_callable_become_true_with_the_decision_and_run_once(prepared: Ledger, url: str) -> None:
    seen: list[Any] = []

    def dual_write(connection: Connection, document: Any) -> None:
        seen.append(document)
        assert not sql_elsewhere(url)  # not visible before the decision is
        connection.execute(text(INSERT), {"id": 2, "load_key": "also", "records": document.records})

    for _ in range(2):  # the second time it is decided already
        assert decide(prepared, [(INSERT, {"id": 1})], dual_write).verdict is Verdict.COMMIT
    assert seen == [manifest(prepared, 1)]
    assert rows(url) == [(1, LOAD.key, 20), (2, "also", 20)]


def sql_elsewhere(url: str) -> list[Any]:
    other = database.Database(url)
    try:
        return other.read(lambda c: list(c.execute(text("SELECT id FROM marts"))))
    finally:
        other.close()


@pytest.mark.parametrize(
    ("statement", "values", "says"),
    [
        ("INSERT INTO nowhere VALUES (:x)", {"x": SECRET}, "nowhere"),
        (INSERT, {"id": 5, "records": -1}, "check|CHECK|CONSTRAINT"),
        ("INSERT INTO marts VALUES (:id, :x, 1), (:id, :x, 1)", {"id": 5, "x": SECRET}, "(?i:unique)"),
        ("SELEC :x", {"x": SECRET}, "(?i:syntax)"),
    ],
)
def test_a_statement_that_fails_is_named_by_its_number_and_nothing_is_decided(
    prepared: Ledger, url: str, statement: str, values: dict[str, Any], says: str
) -> None:
    if url.startswith("mysql") and says.startswith("(?i:"):
        says = r"error \d+"  # its messages quote values
    with pytest.raises(DualWriteError, match=f"dual_write_sql statement 2 failed.*({says})") as caught:
        decide(prepared, [(INSERT, {"id": 1}), (statement, values)])
    assert (caught.value.load, caught.value.attempt) == (str(LOAD), 1)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    retried(prepared, url)


def test_a_value_that_the_database_refuses_is_not_shown(prepared: Ledger, url: str) -> None:
    bad: Any = SECRET if url.startswith("postgresql") else object()
    with pytest.raises(DualWriteError, match="statement 1 failed") as caught:
        decide(prepared, [("INSERT INTO marts VALUES (1, 'x', :n)", {"n": bad})])
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    retried(prepared, url)


def test_a_parameter_that_nobody_gives(prepared: Ledger, url: str) -> None:
    with pytest.raises(ConfigurationError, match="statement 1 names the parameter :id"):
        decide(prepared, INSERT)
    retried(prepared, url)


def test_what_a_callable_raises_is_passed_on_and_undoes_the_decision(prepared: Ledger, url: str) -> None:
    def dual_write(connection: Connection, _: Any) -> None:
        connection.execute(text("INSERT INTO marts VALUES (1, 'x', 1)"))
        raise RuntimeError("the author's own")

    with pytest.raises(RuntimeError, match="the author's own"):
        decide(prepared, dual_write=dual_write)
    retried(prepared, url)


def _insert(connection: Connection, number: int) -> None:
    connection.execute(text("INSERT INTO marts VALUES (:n, 'x', 1)"), {"n": number})


def _swallowed(work: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        work()


HIDDEN: list[Callable[[Any], Any]] = [lambda c: _swallowed(c.commit), lambda c: _swallowed(c.rollback)]


@pytest.mark.parametrize(
    "ends",
    [
        lambda c: c.commit(),
        lambda c: c.rollback(),
        lambda c: c.execute(text("COMMIT")),
        lambda c: c.exec_driver_sql("-- a\nROLLBACK"),
        lambda c: c.get_transaction().commit(),
        *HIDDEN,
    ],
    ids=["commit", "rollback", "COMMIT", "ROLLBACK", "transaction", "hidden-commit", "hidden-rollback"],
)
def test_a_callable_cannot_end_the_transaction(prepared: Ledger, url: str, ends: Callable[[Any], Any]) -> None:
    def dual_write(connection: Connection, _: Any) -> None:
        _insert(connection, 1)
        ends(connection)

    with pytest.raises(DualWriteError, match=r"commits or rolls back|runs COMMIT|hid that this was refused") as caught:
        decide(prepared, dual_write=dual_write)
    assert ("hid that" in str(caught.value)) == (ends in HIDDEN)
    retried(prepared, url)


def test_savepoints_of_the_author_are_free(prepared: Ledger, url: str) -> None:
    def dual_write(connection: Connection, _: Any) -> None:
        with connection.begin_nested():
            _insert(connection, 1)
        undone = connection.begin_nested()
        _insert(connection, 2)
        undone.rollback()

    decide(prepared, dual_write=dual_write)
    assert rows(url) == [(1, "x", 1)]


def test_a_commit_past_sqlalchemy_is_noticed_and_said(prepared: Ledger, url: str) -> None:
    """The decision is written before the author's SQL: what it commits by itself holds the decision too."""

    def dual_write(connection: Connection, _: Any) -> None:
        _insert(connection, 1)
        connection.connection.commit()
        if url.startswith("postgresql"):
            _insert(connection, 2)

    with pytest.raises(InDoubtError, match="the decision to commit stands"):
        decide(prepared, dual_write=dual_write)
    assert (is_decided(prepared), rows(url)) == (True, [(1, "x", 1)])


@pytest.mark.parametrize("then", ["is noticed", "fails", "dies", "meets a deadlock"])
def test_a_decision_with_a_part_of_the_rows_is_never_taken_for_done(
    prepared: Ledger, url: str, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """By whoever asks for it later, of the run that has decided: prepare left it to decide, a retry, a clear."""

    def dual_write(connection: Connection, _: Any) -> None:
        _insert(connection, 1)
        connection.connection.commit()
        if then == "fails":
            connection.execute(text("SELEC"))
        if then == "dies":
            raise KeyboardInterrupt
        if then == "meets a deadlock":
            raise OperationalError("", {}, Exception("database is locked"))

    monkeypatch.setattr(database, "is_passing", lambda error: isinstance(error, OperationalError))
    with pytest.raises(UndecidableError, match="not decided to be committed"):
        prepared.set_finished(LOAD, by="ann", reason="too early")
    with pytest.raises(KeyboardInterrupt if then == "dies" else InDoubtError):
        decide(prepared, dual_write=dual_write)
    assert (is_decided(prepared), rows(url)) == (True, [(1, "x", 1)])
    session: Any = SimpleNamespace(ledger=prepared)
    for _ in range(2):
        for owner in ("decide", "another run"):
            with pytest.raises(InDoubtError, match="set-finished NAME KEY"):
                undecided_attempt(session, LOAD, owner=owner)
        with pytest.raises(InDoubtError, match="set-finished NAME KEY"):
            VisiblePoll(LOAD)(session)
        with pytest.raises(InDoubtError, match="set-finished NAME KEY"):
            decide(prepared, [(INSERT, {"id": 2})])
    said = prepared.set_finished(LOAD, by="ann", reason="added row 2")
    assert said.reason == "its dual write was finished by hand, by ann: added row 2"
    assert prepared.set_finished(LOAD, by="bob", reason="again") == said
    assert undecided_attempt(session, LOAD, owner="decide") == said
    assert rows(url) == [(1, "x", 1)], "the SQL runs no second time"


def test_a_decision_whose_dual_write_is_through_has_no_reason(prepared: Ledger, url: str) -> None:
    done = decide(prepared, [(INSERT, {"id": 1})])
    assert (done.reason, done.is_unfinished) == ("", False)
    assert prepared.attempt(LOAD, 1) == done
    session: Any = SimpleNamespace(ledger=prepared)
    assert undecided_attempt(session, LOAD, owner="decide") == done


@pytest.mark.parametrize(
    "statement",
    ["TRUNCATE marts", "-- a\nCREATE TABLE more (id INTEGER)", "LOCK TABLES marts WRITE", "SET autocommit=1"],
)
def test_what_mysql_commits_by_itself_is_refused_there(prepared: Ledger, url: str, statement: str) -> None:
    if not url.startswith("mysql"):
        return  # elsewhere it is a part of the transaction, or wrong
    with pytest.raises(DualWriteError, match="which MySQL commits by itself"):
        decide(prepared, [(INSERT, {"id": 1}), statement])
    retried(prepared, url)


def test_a_change_of_definitions_is_a_part_of_the_transaction_elsewhere(prepared: Ledger, url: str) -> None:
    if url.startswith("mysql"):
        return
    decide(prepared, ["CREATE TABLE more (id INTEGER)", (INSERT, {"id": 1})])
    assert (rows(url), sql(url, "SELECT * FROM more")) == ([(1, LOAD.key, 20)], [])


def test_a_rollback_past_sqlalchemy_is_noticed_and_nothing_is_decided(prepared: Ledger, url: str) -> None:
    def dual_write(connection: Connection, _: Any) -> None:
        _insert(connection, 1)
        connection.connection.rollback()
        if url.startswith("postgresql"):
            _insert(connection, 2)

    with pytest.raises(DualWriteError, match="rolled the ledger's transaction back"):
        decide(prepared, dual_write=dual_write)
    retried(prepared, url)


def test_an_error_that_the_callable_swallows_is_no_success(prepared: Ledger, url: str) -> None:
    """PostgreSQL's COMMIT of a failed transaction is a ROLLBACK that raises nothing."""
    if not url.startswith("postgresql"):
        return  # elsewhere a failed statement leaves the transaction whole
    with pytest.raises(DualWriteError, match="went on after a statement of it had failed"):
        decide(prepared, dual_write=lambda c, _: _swallowed(lambda: c.execute(text("SELECT 1/0"))))
    retried(prepared, url)


def test_a_constraint_that_is_checked_at_commit(prepared: Ledger, url: str) -> None:
    if url.startswith("mysql"):
        return  # it checks none there
    sql(url, "CREATE TABLE parts (mart INTEGER REFERENCES marts (id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(DualWriteError, match="COMMIT behind dual_write_sql statement 1 failed"):
        decide(prepared, "INSERT INTO parts VALUES (7)")
    retried(prepared, url)


def test_a_decision_is_durable_whatever_the_author_sets(prepared: Ledger, url: str) -> None:
    if url.startswith("mysql"):
        return  # innodb_flush_log_at_trx_commit is the server's
    def level(connection: Connection) -> str:
        sqlite = url.startswith("sqlite")
        return str(connection.exec_driver_sql("PRAGMA synchronous" if sqlite else "SHOW synchronous_commit").scalar())

    run = beside.Beside(DualWrite(call=lambda c, _: c.exec_driver_sql(off)), manifest(prepared, 1))
    off = "PRAGMA application_id" if url.startswith("sqlite") else "SET LOCAL synchronous_commit = off"
    opened = database.Database(url)

    def work(connection: Connection) -> str:
        run(connection)
        return level(connection)

    assert opened.write(work) == ("2" if url.startswith("sqlite") else "on")
    opened.close()
    if url.startswith("sqlite"):

        def weak(connection: Connection) -> None:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA synchronous=OFF")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            insist_on_durability(connection)

        with pytest.raises(ConfigurationError, match="synchronous=FULL"):
            opened.write(weak)


def test_time_that_the_authors_sql_takes_counts(
    prepared: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]

    def slow(connection: Connection, _: Any) -> None:
        now[0] += 0.3

    with monkeypatch.context() as patched:
        patched.setattr(decisions, "time", SimpleNamespace(time=lambda: now[0]))
        with pytest.raises(NotFinishedError, match="the end of the author's SQL came so late"):
            decide(prepared, dual_write=slow, not_after=now[0] + 0.2)
    retried(prepared, url)


def test_time_that_the_ledgers_own_work_takes_counts(prepared: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now, mine = [1000.0], manifest(prepared, 1)

    def slow(connection: Connection) -> None:
        now[0] += 0.3

    with monkeypatch.context() as patched:
        patched.setattr(decisions, "time", SimpleNamespace(time=lambda: now[0]))
        with pytest.raises(NotFinishedError, match="a lock of the ledger's came so late"):
            prepared.decide_commit(mine, decided_by="test", not_after=now[0] + 0.2, beside=slow)
    (row,) = prepared.attempts(mine.attempt.load)
    assert row.is_undecided


def test_a_lock_of_the_authors_table_is_tried_again_and_named(
    prepared: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not url.startswith("postgresql"):
        return  # SQLite has one lock, which decide holds; MySQL locks tables in a way of its own
    monkeypatch.setattr(database, "LOCK_TIMEOUT", 0.1)
    holder = database.Database(url)
    with holder.engine.begin() as connection:
        connection.execute(text("LOCK TABLE marts"))
        with Ledger.open(url) as hasty, pytest.raises(LedgerUnavailableError, match="behind, dual_write_sql statement"):
            decide(hasty, [(INSERT, {"id": 1})])
    holder.close()
    retried(prepared, url)


@pytest.fixture
def through(url: str) -> Iterator[tuple[Proxy, str] | None]:
    if not url.startswith("postgresql"):
        yield None
        return
    parsed = parse(url)
    proxy = Proxy(f"{parsed.query['host']}/.s.PGSQL.{parsed.query['port']}")
    yield proxy, (
        f"postgresql://postgres@127.0.0.1:{proxy.port}/{parsed.database}?sslmode=disable&gssencmode=disable"
    )
    proxy.close()


@pytest.mark.parametrize("cut", ["before", "after", "under way"])
def test_a_lost_answer_to_commit_leaves_rows_and_decision_once(
    prepared: Ledger, url: str, through: tuple[Proxy, str] | None, cut: str
) -> None:
    """The ledger is asked again with the load's row locked: behind a COMMIT that is still under way."""
    if through is None:
        return
    proxy, address = through
    if cut == "under way":
        sql(url, "CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS "
                 "$$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$")  # fmt: skip
        sql(url, "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON marts DEFERRABLE INITIALLY DEFERRED "
                 "FOR EACH ROW EXECUTE FUNCTION nap()")  # fmt: skip
    calls: list[int] = []

    def dual_write(connection: Connection, _: Any) -> None:
        calls.append(1)
        connection.execute(text("INSERT INTO marts VALUES (1, 'x', 1)"))
        if len(calls) == 1:
            proxy.cut = cut

    with Ledger.open(address) as ledger:
        assert decide(ledger, dual_write=dual_write).verdict is Verdict.COMMIT
    assert (len(calls), rows(url)) == (2 if cut == "before" else 1, [(1, "x", 1)])
    assert len(sql(url, "SELECT attempt_id FROM kafka_eos_decisions")) == 1


def test_the_connection_is_killed_between_the_authors_rows_and_commit(prepared: Ledger, url: str) -> None:
    if not url.startswith("postgresql"):
        return
    calls: list[int] = []

    def dual_write(connection: Connection, _: Any) -> None:
        _insert(connection, 1)
        calls.append(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
        if len(calls) == 1:
            sql(url, "SELECT pg_terminate_backend(:pid)", pid=calls[0])

    assert decide(prepared, dual_write=dual_write).verdict is Verdict.COMMIT
    assert (len(calls), rows(url)) == (2, [(1, "x", 1)])


def test_nothing_of_the_author_is_kept_in_the_ledger(prepared: Ledger, url: str, tmp_path: Path) -> None:
    decide(prepared, [("INSERT INTO marts VALUES (1, :x, 1)", {"x": SECRET})])
    sql(url, "DELETE FROM marts")
    for name in ("loads", "attempts", "decisions", "transactions"):
        assert SECRET not in str(sql(url, f"SELECT * FROM kafka_eos_{name}"))
