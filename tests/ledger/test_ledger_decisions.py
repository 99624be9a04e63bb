"""Deciding and what follows a decision (rules: one-decision-per-load, committed-is-verified)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    NotFinishedError,
    StoppedError,
    UndecidableError,
)
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, PreparedTxnState, TopicPartition
from tests.ledger.ledger_support import LOAD, OTHER, commit, manifest, prepare, ref, sql, transaction


def state(ledger: Ledger) -> LoadState:
    row = ledger.load(LOAD)
    assert row is not None
    return row.state


def mapping(url: str) -> dict[str, str]:
    query = "SELECT transactional_id, prepared_transaction_state FROM kafka_transaction_state"
    return {str(i): str(s) for i, s in sql(url, query)}


def decisions(url: str) -> int:
    return len(sql(url, "SELECT attempt_id FROM kafka_eos_decisions"))


def test_commit_records_decision_and_mapping(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    document = manifest(ledger, 1)
    row = ledger.decide_commit(document, decided_by="dag/run/decide/1")
    assert (row.verdict, row.decided_by) == (Verdict.COMMIT, "dag/run/decide/1")
    assert state(ledger) is LoadState.COMMITTING
    assert [r.transaction for r in ledger.transactions(LOAD, 1)] == list(document.transactions)
    assert mapping(url) == {t.transactional_id: str(t.state) for t in document.transactions}


def test_all_that_commit_asks_for_is_read_at_once(ledger: Ledger) -> None:
    assert ledger.details(LOAD, 1) is None
    prepare(ledger)
    ends = {TopicPartition("orders", 0): 7}
    row = ledger.decide_commit(manifest(ledger, 1), decided_by="d", end_offsets=ends)
    assert ledger.details(LOAD, 1) == (row, ledger.load(LOAD), ledger.transactions(LOAD, 1), ends)
    assert ledger.details(LOAD, 2) is None


def test_commit_twice_is_one_decision(ledger: Ledger, url: str) -> None:
    row = commit(ledger)
    called: list[Connection] = []
    assert ledger.decide_commit(manifest(ledger, 1), decided_by="again", dual_write=called.append) == row
    assert (decisions(url), len(ledger.transactions(LOAD, 1)), called) == (1, 2, [])


def test_commit_of_an_empty_load(ledger: Ledger) -> None:
    prepare(ledger, full=0)
    ledger.decide_commit(manifest(ledger, 1, full=0), decided_by="d")
    assert ledger.record_committed(LOAD, 1).closed_at is not None
    assert state(ledger) is LoadState.COMMITTED


def test_commit_needs_a_prepared_attempt(ledger: Ledger, url: str) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.submit(LOAD, owner="x")
    with pytest.raises(UndecidableError, match="not prepared"):
        ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    assert decisions(url) == 0


def test_commit_needs_the_newest_attempt(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    ledger.submit(LOAD, owner="newer")
    with pytest.raises(UndecidableError, match=r"aborted by newer"):
        ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    sql(url, "DELETE FROM kafka_eos_decisions")  # as if opening had not aborted it
    with pytest.raises(UndecidableError, match="attempt 2, opened by newer"):
        ledger.decide_commit(manifest(ledger, 1), decided_by="d")


def test_an_aborted_attempt_is_never_committed(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    assert ledger.decide_abort(ref(ledger, 1), decided_by="cleanup", reason="killed")
    with pytest.raises(UndecidableError, match="killed"):
        ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    assert mapping(url) == {}


def test_a_manifest_that_was_swapped_after_prepare_is_never_decided(ledger: Ledger, url: str) -> None:
    prepared = prepare(ledger)
    good = manifest(ledger, 1)
    first = good.entries[0]
    other_digest = replace(first, writes=(replace(first.writes[0], digest="f" * 32),))
    for swapped in (
        manifest(ledger, 1, full=1),
        manifest(ledger, 1, full=3),
        replace(good, entries=(other_digest, *good.entries[1:])),
    ):
        with pytest.raises(UndecidableError, match="not the one that prepare reported"):
            ledger.decide_commit(swapped, decided_by="d")
    assert (ledger.attempt(LOAD, 1), decisions(url), mapping(url)) == (prepared, 0, {})
    decided = ledger.decide_commit(good, decided_by="d")
    with pytest.raises(UndecidableError, match="already, with another manifest"):
        ledger.decide_commit(
            manifest(ledger, 1, full=3), decided_by="d"
        )  # it would look decided to its caller
    assert (ledger.attempt(LOAD, 1), len(mapping(url))) == (decided, 2)


def test_one_commit_per_load_though_another_attempt_is_decided(ledger: Ledger, url: str) -> None:
    commit(ledger)
    insert_attempt(url, 2, prepared=True)
    with pytest.raises(UndecidableError, match="attempt 1 is decided"):
        ledger.decide_commit(manifest(ledger, 2), decided_by="d")


def insert_attempt(url: str, number: int, *, prepared: bool) -> int:
    """A further attempt, past all guards; its row id."""
    sql(
        url,
        "INSERT INTO kafka_eos_attempts (load_id, number, owner, opened_at, submitted_at, prepared_at) "
        "SELECT id, :number, 'raw', 'x', 'x', :prepared FROM kafka_eos_loads",
        number=number,
        prepared="x" if prepared else None,
    )
    return int(sql(url, "SELECT id FROM kafka_eos_attempts WHERE number = :number", number=number)[0][0])


INSERT_DECISION = (
    "INSERT INTO kafka_eos_decisions (attempt_id, load_id, verdict, decided_at, decided_by, reason, committed_load_id) "
    "SELECT :attempt, id, :verdict, 'x', 'raw', '', {} FROM kafka_eos_loads"
)


@pytest.mark.parametrize("committed_load", ["id", "NULL", "id + 1"])
def test_the_index_allows_one_commit_per_load(ledger: Ledger, url: str, committed_load: str) -> None:
    commit(ledger)
    attempt = insert_attempt(url, 2, prepared=True)
    # MariaDB's driver has no word of its own for a CHECK that fails
    refused = (IntegrityError, OperationalError) if url.startswith("mysql") else IntegrityError
    with pytest.raises(refused):
        sql(url, INSERT_DECISION.format(committed_load), attempt=attempt, verdict="commit")
    sql(url, INSERT_DECISION.format("NULL"), attempt=attempt, verdict="abort")
    assert decisions(url) == 2


def test_the_index_allows_one_decision_per_attempt(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    attempt = sql(url, "SELECT id FROM kafka_eos_attempts")[0][0]
    sql(url, INSERT_DECISION.format("NULL"), attempt=attempt, verdict="abort")
    with pytest.raises(IntegrityError):
        sql(url, INSERT_DECISION.format("id"), attempt=attempt, verdict="commit")


def test_an_id_that_the_mapping_holds_already_is_refused_whole(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    name = transaction(ledger, 1, 1).transactional_id
    sql(url, "INSERT INTO kafka_transaction_state VALUES (:name, '7:7')", name=name)  # a stranger's
    with pytest.raises(UndecidableError, match="kafka_transaction_state") as caught:
        ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    assert caught.value.__cause__ is None
    assert (decisions(url), mapping(url)) == (0, {name: "7:7"})
    attempt = ledger.attempt(LOAD, 1)
    assert attempt is not None
    assert attempt.is_undecided


def test_dual_write_is_one_transaction_with_the_decision(ledger: Ledger, url: str) -> None:
    sql(url, "CREATE TABLE app (n INTEGER PRIMARY KEY)")
    prepare(ledger)

    def write(connection: Connection) -> None:
        connection.execute(text("INSERT INTO app VALUES (1)"))

    ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=write)
    ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=write)
    assert sql(url, "SELECT n FROM app") == [(1,)]


def test_dual_write_that_fails_undoes_the_decision(ledger: Ledger, url: str) -> None:
    sql(url, "CREATE TABLE app (n INTEGER PRIMARY KEY)")
    prepare(ledger)

    def write_twice(connection: Connection) -> None:
        connection.execute(text("INSERT INTO app VALUES (1)"))
        connection.execute(text("INSERT INTO app VALUES (1)"))

    with pytest.raises(IntegrityError):
        ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=write_twice)
    assert (sql(url, "SELECT n FROM app"), decisions(url), mapping(url)) == ([], 0, {})
    assert state(ledger) is LoadState.PREPARED


@pytest.mark.parametrize("when", [1, 2])
def test_who_is_told_to_stop_at_the_lock_or_in_the_dual_write_decides_nothing(
    ledger: Ledger, url: str, when: int
) -> None:
    sql(url, "CREATE TABLE app (n INTEGER PRIMARY KEY)")
    prepare(ledger)
    wrote: list[int] = []

    def write(connection: Connection) -> None:
        connection.execute(text("INSERT INTO app VALUES (1)"))
        wrote.append(1)

    def check_stop() -> None:
        if len(wrote) == when - 1:
            raise StoppedError("told to stop", remedy="None")

    with pytest.raises(StoppedError):
        ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=write, check_stop=check_stop)
    assert (sql(url, "SELECT n FROM app"), decisions(url), len(wrote)) == ([], 0, when - 1)
    decided = ledger.decide_commit(manifest(ledger, 1), decided_by="d")
    assert ledger.decide_commit(manifest(ledger, 1), decided_by="d", check_stop=check_stop) == decided, "it stays so"


def test_a_mistake_in_the_dual_write_is_its_authors(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    with pytest.raises(DBAPIError, match="no_such_table"):
        ledger.decide_commit(
            manifest(ledger, 1), decided_by="d", dual_write=lambda c: c.execute(text("DELETE FROM no_such_table"))  # type: ignore[arg-type]
        )
    assert decisions(url) == 0


def test_abort_is_idempotent_and_loses_to_a_commit(ledger: Ledger, url: str) -> None:
    prepare(ledger)
    assert ledger.decide_abort(ref(ledger, 1), decided_by="first", reason="a")
    assert ledger.decide_abort(ref(ledger, 1), decided_by="second", reason="b")
    row = ledger.attempt(LOAD, 1)
    assert row is not None
    assert (row.decided_by, row.reason, decisions(url)) == ("first", "a", 1)
    assert state(ledger) is LoadState.ABORTING
    committed = commit(ledger)
    assert not ledger.decide_abort(ref(ledger, 2), decided_by="x", reason="x")
    assert ledger.attempt(LOAD, 2) == committed
    assert state(ledger) is LoadState.COMMITTING


def test_undecidable_up_to_its_own_number_only(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.submit(LOAD, owner="x")
    ledger.submit(LOAD, owner="y")
    rows = ledger.make_undecidable(LOAD, up_to=1, decided_by="old cleanup", reason="teardown")
    assert [(r.number, r.verdict) for r in rows] == [(1, Verdict.ABORT)]
    assert state(ledger) is LoadState.PREPARING
    newest = ledger.attempt(LOAD, 2)
    assert newest is not None
    assert newest.is_undecided
    rows = ledger.make_undecidable(LOAD, up_to=9, decided_by="cleanup", reason="teardown")
    assert [(r.number, r.verdict, r.decided_by) for r in rows] == [
        (1, Verdict.ABORT, "y"),
        (2, Verdict.ABORT, "cleanup"),
    ]
    assert state(ledger) is LoadState.ABORTING
    assert ledger.make_undecidable(LOAD, up_to=9, decided_by="z", reason="z") == rows == ledger.attempts(LOAD)


def test_an_older_attempt_does_not_move_the_load(ledger: Ledger, url: str) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.submit(LOAD, owner="x")
    ledger.submit(LOAD, owner="y")
    sql(url, "DELETE FROM kafka_eos_decisions")  # as if opening had not aborted it
    ledger.make_undecidable(LOAD, up_to=1, decided_by="cleanup", reason="x")
    assert state(ledger) is LoadState.PREPARING


def test_a_decided_attempt_stays_decided(ledger: Ledger) -> None:
    row = commit(ledger)
    assert ledger.make_undecidable(LOAD, up_to=5, decided_by="x", reason="x") == [row]
    assert state(ledger) is LoadState.COMMITTING


def test_only_the_very_identity_is_decided(ledger: Ledger) -> None:
    commit(ledger)
    decided = transaction(ledger, 1, 0)
    other_epoch = PreparedTxnState(decided.state.producer_id, decided.state.producer_epoch + 1)
    assert ledger.is_decided_commit(decided)
    assert not ledger.is_decided_commit(PreparedTransaction(decided.transactional_id, other_epoch))
    assert not ledger.is_decided_commit(PreparedTransaction(decided.transactional_id.upper(), decided.state))
    assert not ledger.is_decided_commit(transaction(ledger, 1, 2))
    assert not ledger.is_decided_commit(transaction(ledger, 2, 0))


def test_a_transaction_without_a_commit_decision_is_not_decided(ledger: Ledger) -> None:
    prepare(ledger)
    identity = ledger.transactions(LOAD, 1)[0].transaction
    assert not ledger.is_decided_commit(identity)  # prepared, undecided
    ledger.decide_abort(ref(ledger, 1), decided_by="x", reason="x")
    assert not ledger.is_decided_commit(identity)
    commit(ledger)
    assert not ledger.is_decided_commit(identity)  # another attempt is
    assert ledger.is_decided_commit(ledger.transactions(LOAD, 2)[0].transaction)


def finish(ledger: Ledger) -> None:
    for row in ledger.transactions(LOAD, 1):
        ledger.record_outcomes(LOAD, 1, {row.transaction.transactional_id: Outcome.COMMITTED})


def test_committed_needs_every_outcome(ledger: Ledger, url: str) -> None:
    commit(ledger)
    first, second = (t.transaction.transactional_id for t in ledger.transactions(LOAD, 1))
    with pytest.raises(NotFinishedError, match="2 of 2"):
        ledger.record_committed(LOAD, 1)
    assert ledger.record_outcomes(LOAD, 1, {first: Outcome.COMMITTED}) == {first: Outcome.COMMITTED}
    assert ledger.record_outcomes(LOAD, 1, {second: Outcome.OPEN}) == {second: Outcome.OPEN}
    with pytest.raises(NotFinishedError, match="1 of 2") as caught:
        ledger.record_committed(LOAD, 1)
    assert caught.value.transactional_id == second
    assert state(ledger) is LoadState.COMMITTING
    assert len(mapping(url)) == 2
    ledger.record_outcomes(LOAD, 1, {second: Outcome.COMMITTED})
    row = ledger.record_committed(LOAD, 1)
    assert row.closed_at is not None
    assert state(ledger) is LoadState.COMMITTED
    assert ledger.record_committed(LOAD, 1) == row == ledger.attempt(LOAD, 1)
    assert ledger.begin(LOAD, owner="x") == row


def test_outcomes_and_their_commit_are_one_transaction_where_all_are_verified(ledger: Ledger, url: str) -> None:
    commit(ledger)
    first, second = (t.transaction.transactional_id for t in ledger.transactions(LOAD, 1))
    one = {first: Outcome.COMMITTED}
    assert ledger.record_and_close(LOAD, 1, one) == (one, None), "the other's end was not seen"
    assert ledger.record_and_close(LOAD, 1, {second: Outcome.OPEN}) == ({second: Outcome.OPEN}, None)
    assert state(ledger) is LoadState.COMMITTING
    assert len(mapping(url)) == 2
    recorded, row = ledger.record_and_close(LOAD, 1, {second: Outcome.COMMITTED})
    assert recorded == {second: Outcome.COMMITTED}
    assert row is not None and row.closed_at is not None
    assert state(ledger) is LoadState.COMMITTED
    assert mapping(url) == {}
    assert ledger.record_and_close(LOAD, 1, one) == (one, row)
    assert ledger.record_committed(LOAD, 1) == row == ledger.attempt(LOAD, 1)


def test_what_was_seen_of_a_load_that_is_given_up_meanwhile_is_kept(ledger: Ledger) -> None:
    commit(ledger)
    names = [t.transaction.transactional_id for t in ledger.transactions(LOAD, 1)]
    ledger.record_given_up(LOAD, by="ada", reason="x")
    seen = dict.fromkeys(names, Outcome.COMMITTED)
    assert ledger.record_and_close(LOAD, 1, seen) == (seen, None)
    assert [t.outcome for t in ledger.transactions(LOAD, 1)] == [Outcome.COMMITTED] * 2
    assert state(ledger) is LoadState.GIVEN_UP
    with pytest.raises(UndecidableError):
        ledger.record_committed(LOAD, 1)


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.IN_DOUBT])
def test_a_lost_transaction_is_not_waited_for(ledger: Ledger, outcome: Outcome) -> None:
    commit(ledger)
    finish_first = ledger.transactions(LOAD, 1)[0].transaction.transactional_id
    ledger.record_outcomes(LOAD, 1, {finish_first: outcome})
    with pytest.raises(InDoubtError) as caught:
        ledger.record_committed(LOAD, 1)
    assert caught.value.transactional_id == finish_first


def test_the_mapping_goes_with_the_verified_commit_and_only_its_own_rows(ledger: Ledger, url: str) -> None:
    commit(ledger)
    commit(ledger, OTHER)
    finish(ledger)
    ledger.record_committed(LOAD, 1)
    assert set(mapping(url)) == {t.transaction.transactional_id for t in ledger.transactions(OTHER, 1)}
    assert ledger.is_decided_commit(transaction(ledger, 1, 0))


def test_committed_is_final(ledger: Ledger) -> None:
    commit(ledger)
    name = ledger.transactions(LOAD, 1)[0].transaction.transactional_id
    ledger.record_outcomes(LOAD, 1, {name: Outcome.OPEN})
    ledger.record_outcomes(LOAD, 1, {name: Outcome.COMMITTED})
    for later in (Outcome.OPEN, Outcome.ABORTED, Outcome.IN_DOUBT):
        assert ledger.record_outcomes(LOAD, 1, {name: later}) == {name: Outcome.COMMITTED}
    assert ledger.transactions(LOAD, 1)[0].outcome is Outcome.COMMITTED


def test_outcomes_belong_to_a_commit_decision(ledger: Ledger) -> None:
    prepare(ledger)
    name = transaction(ledger, 1, 0).transactional_id
    calls = (
        lambda: ledger.record_outcomes(LOAD, 1, {name: Outcome.COMMITTED}),
        lambda: ledger.record_and_close(LOAD, 1, {name: Outcome.COMMITTED}),
        lambda: ledger.record_committed(LOAD, 1),
        lambda: ledger.record_in_doubt(LOAD, 1, "x"),
    )
    for call in calls:
        with pytest.raises(UndecidableError, match="undecided"):
            call()
    ledger.decide_abort(ref(ledger, 1), decided_by="x", reason="x")
    for call in calls:
        with pytest.raises(UndecidableError, match="aborted"):
            call()
    assert [t.outcome for t in ledger.transactions(LOAD, 1)] == [None, None]


def test_an_unknown_transaction_has_no_outcome(ledger: Ledger) -> None:
    commit(ledger)
    commit(ledger, OTHER)
    foreign = transaction(ledger, 1, 0, OTHER).transactional_id
    with pytest.raises(ConfigurationError) as caught:
        ledger.record_outcomes(LOAD, 1, {foreign: Outcome.COMMITTED})
    assert caught.value.transactional_id == foreign
    assert all(t.outcome is None for t in ledger.transactions(OTHER, 1))


def test_in_doubt_stops_for_a_person_and_can_be_mended(ledger: Ledger) -> None:
    commit(ledger)
    ledger.record_in_doubt(LOAD, 1, "mixed markers")
    ledger.record_in_doubt(LOAD, 1, "still mixed")
    row = ledger.load(LOAD)
    assert row is not None
    assert (row.state, row.reason) == (LoadState.IN_DOUBT, "still mixed")
    assert ledger.begin(LOAD, owner="x").number == 1
    finish(ledger)
    ledger.record_committed(LOAD, 1)
    row = ledger.load(LOAD)
    assert row is not None
    assert (row.state, row.reason) == (LoadState.COMMITTED, "")
    assert not ledger.record_in_doubt(LOAD, 1, "too late")
    assert ledger.load(LOAD) == row


def test_writes_of_a_thousand_partitions_fit(ledger: Ledger, url: str) -> None:
    ledger.begin(LOAD, owner="x")
    ledger.submit(LOAD, owner="x")
    document = manifest(ledger, 1, full=1)
    one = document.entries[0]
    many = tuple(replace(one.writes[0], partition=p) for p in range(1000))
    document = replace(document, entries=(replace(one, writes=many), document.entries[1]))
    ledger.mark_prepared(document)
    assert ledger.transactions(LOAD, 1)[0].writes == many
    assert len(json.loads(sql(url, "SELECT writes FROM kafka_eos_transactions")[0][0])) == 1000


def test_outcomes_of_many_transactions_are_recorded_by_few_statements(ledger: Ledger) -> None:
    """A load has as many as Spark has tasks; row by row, each looked up among all, ten thousand took a minute."""
    sent: list[str] = []
    counts = []
    event.listen(ledger.database.engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    for number, full in enumerate((2, 40)):
        load = LoadIdentity("team", "load_orders", str(number))
        prepare(ledger, load, full=full)
        ledger.decide_commit(manifest(ledger, 1, load, full=full), decided_by="x")
        names = [t.transaction.transactional_id for t in ledger.transactions(load, 1)]
        found = dict.fromkeys(names, Outcome.COMMITTED) | {names[0]: Outcome.LOST}
        sent.clear()
        assert ledger.record_outcomes(load, 1, found) == found
        counts.append(sum(statement.startswith("UPDATE") for statement in sent))
        assert {t.transaction.transactional_id: t.outcome for t in ledger.transactions(load, 1)} == found
    assert counts == [2, 2]
