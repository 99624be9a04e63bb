"""A ledger that is full, read-only, or restored from a backup: a clear error, nothing lost."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from sqlalchemy import event

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.errors import ConfigurationError, LedgerUnavailableError, UndecidableError
from airflow_kafka_eos.ledger import Ledger, database
from airflow_kafka_eos.ledger.location import parse
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import LEDGER_ID_PATTERN
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import LOAD, OTHER, commit, manifest, prepare, sql


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LONGEST_PAUSE", 0.05)


def no_further_page(connection: Any, _: object) -> None:
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_ledger_decides_nothing_and_goes_on_when_there_is_room(ledger: Ledger, url: str) -> None:
    if not url.startswith("sqlite"):
        return  # filling a disk is not for a test; PostgreSQL's code 53100 is told apart like SQLite's
    prepare(ledger)
    engine = ledger.database.engine
    event.listen(engine, "connect", no_further_page)
    with pytest.raises(LedgerUnavailableError, match=r"is full .*nothing was written.*Make room"):
        for _ in range(200):  # until the last page has no room left
            ledger.begin(OTHER, owner="x" * 500)
            ledger.submit(OTHER, owner="y" * 500)
    event.remove(engine, "connect", no_further_page)
    assert ledger.decide_commit(manifest(ledger, 1), decided_by="d").verdict is Verdict.COMMIT


def test_a_ledger_that_is_full_says_so_where_somebody_else_may_be_first(ledger: Ledger, url: str) -> None:
    """By SQLITE_FULL everything is rolled back, a savepoint too: going back to it would tell of that instead."""
    if not url.startswith("sqlite"):
        return
    event.listen(ledger.database.engine, "connect", no_further_page)
    loads = [LoadIdentity("team", "load_orders", f"{number:03}{'k' * 150}") for number in range(200)]
    with pytest.raises(LedgerUnavailableError, match=r"is full .*nothing was written"):
        for load in loads:  # their rows are the longest of what a begin writes: it is theirs that has no room
            ledger.begin(load, owner="o")
    begun = [load for load in loads if ledger.attempts(load)]
    assert len(begun) == len(ledger.loads("team", "load_orders")) and 0 < len(begun) < len(loads)
    event.remove(ledger.database.engine, "connect", no_further_page)
    assert ledger.begin(loads[len(begun)], owner="o").number == 1


def test_a_read_only_ledger_can_be_looked_at_and_decides_nothing(ledger: Ledger, url: str) -> None:
    if url.startswith("mysql"):
        return  # read_only is of the whole server
    prepare(ledger)
    says = "read-only transaction"
    if url.startswith("postgresql"):
        sql(url, f"ALTER DATABASE {parse(url).database} SET default_transaction_read_only = on")
    else:
        # whoever runs the tests may be root, for whom no file is read-only
        says = "is read-only .*nothing was written.*writable"
        event.listen(ledger.database.engine, "connect", lambda c, _: c.execute("PRAGMA query_only = ON"))
    assert len(ledger.attempts(LOAD)) == 1
    with pytest.raises(LedgerUnavailableError, match=says):
        ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    assert ledger.attempts(LOAD)[0].is_undecided


def test_a_new_id_makes_undecided_attempts_undecidable_and_keeps_what_is_committed(ledger: Ledger, url: str) -> None:
    commit(ledger)
    for t in ledger.transactions(LOAD, 1):
        ledger.record_outcomes(LOAD, 1, {t.transaction.transactional_id: Outcome.COMMITTED})
    ledger.record_committed(LOAD, 1)
    prepare(ledger, OTHER)
    before = manifest(ledger, 1, OTHER)
    old = ledger.ledger_id
    assert ledger.new_id(decided_by="me") == old
    assert LEDGER_ID_PATTERN.fullmatch(ledger.ledger_id) and ledger.ledger_id != old
    with Ledger.open(url) as again:
        assert again.ledger_id == ledger.ledger_id
    assert ledger.load(LOAD).state is LoadState.COMMITTED  # type: ignore[union-attr]
    assert [a.verdict for a in ledger.attempts(OTHER)] == [Verdict.ABORT]
    with pytest.raises(ConfigurationError, match="belongs to ledger"):
        ledger.decide_commit(before, decided_by="late")
    with Ledger.open(url) as stale:
        stale.ledger_id = old  # a process that opened it before
        with pytest.raises(UndecidableError, match="the ledger got a new id"):
            stale.decide_commit(before, decided_by="late")


def test_no_new_id_while_a_decided_load_is_not_finished(ledger: Ledger) -> None:
    commit(ledger)
    old = ledger.ledger_id
    with pytest.raises(ConfigurationError, match="1 decided loads are not finished: team"):
        ledger.new_id(decided_by="me")
    assert ledger.ledger_id == old


def test_no_new_id_while_a_decided_load_is_in_doubt_until_it_is_given_up(ledger: Ledger) -> None:
    """What it has open has the present id in its name: nobody would end it under another."""
    commit(ledger)
    ledger.record_in_doubt(LOAD, 1, "mixed markers")
    old = ledger.ledger_id
    with pytest.raises(ConfigurationError, match="1 decided loads are not finished: team") as refused:
        ledger.new_id(decided_by="me")
    assert "recover" in refused.value.remedy and "give-up" in refused.value.remedy
    ledger.record_given_up(LOAD, by="ada", reason="written by hand")
    ledger.record_swept(LOAD, 1)  # cleanup has seen that nothing of it is open
    assert ledger.new_id(decided_by="me") == old


def test_no_new_id_while_a_load_that_was_given_up_may_have_transactions_open(ledger: Ledger) -> None:
    commit(ledger)
    committed, open_ = (t.transaction.transactional_id for t in ledger.transactions(LOAD, 1))
    ledger.record_outcomes(LOAD, 1, {committed: Outcome.COMMITTED})
    ledger.record_given_up(LOAD, by="ada", reason="written by hand")
    old = ledger.ledger_id
    says = rf"may have transactions open: team\..*\({re.escape(open_)}, "
    with pytest.raises(ConfigurationError, match=says) as refused:
        ledger.new_id(decided_by="me")
    assert "force-terminate" in refused.value.remedy and refused.value.transactional_id == open_
    assert ledger.ledger_id == old
    ledger.record_swept(LOAD, 1)
    assert ledger.new_id(decided_by="me") == old


def test_the_command_asks_explains_and_renews(
    ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", url)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes"))  # no terminal: nobody is there to ask
    assert main(["ledger", "new-id"]) == 2
    shown = capsys.readouterr()
    assert "restored from a backup" in shown.out and "nothing was done" in shown.err
    with Ledger.open(url) as same:
        assert same.ledger_id == ledger.ledger_id
    assert main(["ledger", "new-id", "--yes"]) == 0
    with Ledger.open(url) as other:
        assert other.ledger_id != ledger.ledger_id
    assert f"{ledger.ledger_id} -> " in capsys.readouterr().out
