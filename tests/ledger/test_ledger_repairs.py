"""Repairs and giving up: one replacement for one lost row, whoever comes (rule: repair-replaces-lost-row)."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    KafkaEosError,
    NotFinishedError,
    UndecidableError,
)
from airflow_kafka_eos.ledger import Ledger, TransactionRow
from airflow_kafka_eos.ledger.rows import RepairRow, RepairState
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, PreparedTxnState
from tests.ledger.ledger_support import LOAD, OTHER, commit, prepare, ref, sql


def lost_one(ledger: Ledger) -> TransactionRow:
    """A decided load of two transactions: the first is lost, the second committed."""
    commit(ledger)
    lost, good = ledger.transactions(LOAD, 1)
    names = [t.transaction.transactional_id for t in (lost, good)]
    ledger.record_outcomes(LOAD, 1, dict(zip(names, [Outcome.LOST, Outcome.COMMITTED], strict=True)))
    return lost


def open_repair(ledger: Ledger, lost: TransactionRow, by: str = "r") -> RepairRow:
    row = ledger.open_repair(LOAD, 1, lost.transaction.transactional_id, opened_by=by)
    assert row is not None
    return row


def prepared(row: RepairRow) -> PreparedTransaction:
    return PreparedTransaction(row.transactional_id, PreparedTxnState(2000 + row.number, 0))


def adopt(ledger: Ledger, row: RepairRow, lost: TransactionRow) -> RepairRow:
    writes = tuple(replace(w, first_offset=100, last_offset=109) for w in lost.writes)
    return ledger.adopt(LOAD, row.number, prepared(row), writes)


def repaired(ledger: Ledger) -> TransactionRow:
    """A load that is COMMITTED by its replacement; the transaction that was lost."""
    lost = lost_one(ledger)
    row = open_repair(ledger, lost)
    adopt(ledger, row, lost)
    ledger.record_outcomes(LOAD, 1, {row.transactional_id: Outcome.COMMITTED})
    ledger.record_committed(LOAD, 1)
    return lost


def load_state(ledger: Ledger) -> LoadState:
    row = ledger.load(LOAD)
    assert row is not None
    return row.state


def mapping(url: str) -> set[str]:
    return {row[0] for row in sql(url, "SELECT transactional_id FROM kafka_transaction_state")}


def test_a_repair_is_an_attempt_of_its_own_with_an_id_of_ours(ledger: Ledger) -> None:
    lost = lost_one(ledger)
    first, second = open_repair(ledger, lost, "a"), open_repair(ledger, lost, "b")
    assert [r.number for r in (first, second)] == [2, 3]
    assert first.transactional_id != second.transactional_id
    parsed = TransactionalId.parse(first.transactional_id)
    assert parsed is not None
    assert (parsed.load, parsed.ledger_id, parsed.attempt) == (LOAD, ledger.ledger_id, 2)
    assert [(r.state, r.opened_by, r.attempt) for r in ledger.repairs(LOAD)] == [
        (RepairState.OPEN, "a", 1),
        (RepairState.OPEN, "b", 1),
    ]
    assert load_state(ledger) is LoadState.REPAIRING
    # no ordinary attempt comes of it (rule: one-key-loads-once)
    assert [ledger.begin(LOAD, owner="x").number, ledger.submit(LOAD, owner="x").number] == [1, 1]
    assert len(ledger.attempts(LOAD)) == 1
    assert ledger.repairs(OTHER) == []


def test_only_what_is_lost_is_repaired(ledger: Ledger) -> None:
    lost_one(ledger)
    good = ledger.transactions(LOAD, 1)[1].transaction.transactional_id
    assert ledger.open_repair(LOAD, 1, good, opened_by="r") is None
    assert ledger.open_repair(LOAD, 1, "unknown", opened_by="r") is None
    prepare(ledger, OTHER)
    with pytest.raises(UndecidableError):
        ledger.open_repair(OTHER, 1, good, opened_by="r")
    assert [ledger.repairs(LOAD), ledger.repairs(OTHER)] == [[], []]


def test_one_ledger_transaction_replaces_the_lost_row_and_decides_the_repair(
    ledger: Ledger, url: str
) -> None:
    lost = lost_one(ledger)
    row = open_repair(ledger, lost)
    before = mapping(url)
    done = adopt(ledger, row, lost)
    assert done.state is RepairState.ADOPTED
    assert adopt(ledger, row, lost) == done == ledger.repairs(LOAD)[0]  # as when the answer was lost
    old, new = [t for t in ledger.transactions(LOAD, 1) if t.spark_partition == lost.spark_partition]
    if old.outcome is None:
        old, new = new, old
    assert (old.transaction, old.outcome) == (lost.transaction, Outcome.SUPERSEDED)
    assert (new.transaction, new.outcome, new.records, new.topic_ids) == (
        prepared(row), None, lost.records, lost.topic_ids,
    )  # fmt: skip
    assert [w.first_offset for w in new.writes] == [100]
    assert ledger.is_decided_commit(new.transaction)
    assert not ledger.is_decided_commit(old.transaction)
    assert mapping(url) == before - {lost.transaction.transactional_id} | {row.transactional_id}


def test_the_loser_of_the_race_is_undecidable(ledger: Ledger) -> None:
    lost = lost_one(ledger)
    first, second = open_repair(ledger, lost), open_repair(ledger, lost)
    assert adopt(ledger, second, lost).state is RepairState.ADOPTED
    assert [r.state for r in ledger.repairs(LOAD)] == [RepairState.UNDECIDABLE, RepairState.ADOPTED]
    late = adopt(ledger, first, lost)
    assert (late.state, late.reason) == (RepairState.UNDECIDABLE, "repair 3 was adopted")
    assert len(ledger.transactions(LOAD, 1)) == 3
    assert not ledger.is_decided_commit(prepared(first))


def test_many_repairers_at_once(ledger: Ledger, url: str) -> None:
    lost = lost_one(ledger)
    rows = [open_repair(ledger, lost) for _ in range(4)]
    ready, states = threading.Barrier(4), list[RepairState]()

    def run(row: RepairRow) -> None:
        with Ledger.open(url) as own:
            ready.wait()
            states.append(adopt(own, row, lost).state)

    threads = [threading.Thread(target=run, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(states) == [RepairState.ADOPTED] + [RepairState.UNDECIDABLE] * 3
    assert len(ledger.transactions(LOAD, 1)) == 3


def test_a_repair_that_was_made_undecidable_never_enters_the_decision(ledger: Ledger) -> None:
    lost = lost_one(ledger)
    row = open_repair(ledger, lost)
    ledger.abandon_repairs(LOAD, reason="cleanup")
    assert adopt(ledger, row, lost).state is RepairState.UNDECIDABLE
    assert ledger.transactions(LOAD, 1)[0].outcome is Outcome.LOST
    # and one that is adopted is not made undecidable any more
    second = open_repair(ledger, lost)
    adopt(ledger, second, lost)
    ledger.abandon_repairs(LOAD, reason="cleanup")
    assert ledger.abandon_repair(LOAD, second.number, reason="x").state is RepairState.ADOPTED
    ledger.close_repairs(LOAD, [row.number, second.number])
    assert [r.closed_at is not None for r in ledger.repairs(LOAD)] == [True, False]


def test_nothing_is_adopted_while_a_person_is_asked(ledger: Ledger) -> None:
    lost = lost_one(ledger)
    row = open_repair(ledger, lost)
    ledger.record_in_doubt(LOAD, 1, "mixed")
    assert adopt(ledger, row, lost).state is RepairState.UNDECIDABLE
    open_repair(ledger, lost)  # whoever looks again goes on
    assert load_state(ledger) is LoadState.REPAIRING


def test_only_the_repairs_own_transaction_is_adopted(ledger: Ledger) -> None:
    lost = lost_one(ledger)
    row = open_repair(ledger, lost)
    for foreign in (lost.transaction, PreparedTransaction(row.transactional_id, PreparedTxnState.EMPTY)):
        with pytest.raises(ConfigurationError, match="is not the transaction of repair 2"):
            ledger.adopt(LOAD, row.number, foreign, lost.writes)
    with pytest.raises(ConfigurationError, match="no repair 9"):
        ledger.abandon_repair(LOAD, 9, reason="x")


def test_committed_needs_the_replacement_and_not_what_it_replaced(ledger: Ledger, url: str) -> None:
    lost = lost_one(ledger)
    with pytest.raises(InDoubtError):
        ledger.record_committed(LOAD, 1)
    late, row = open_repair(ledger, lost), open_repair(ledger, lost)
    adopt(ledger, row, lost)
    # whatever opened another one behind it
    sql(url, "UPDATE kafka_eos_repairs SET state = 'open' WHERE number = 2")
    with pytest.raises(NotFinishedError, match="1 of 3"):
        ledger.record_committed(LOAD, 1)
    ledger.record_outcomes(LOAD, 1, {row.transactional_id: Outcome.COMMITTED})
    ledger.record_committed(LOAD, 1)
    assert (load_state(ledger), mapping(url)) == (LoadState.COMMITTED, set())
    assert all(r.state is not RepairState.OPEN for r in ledger.repairs(LOAD))
    assert adopt(ledger, late, lost).state is RepairState.UNDECIDABLE


def test_whoever_is_overtaken_finds_a_committed_load_and_changes_nothing(ledger: Ledger) -> None:
    """A committer whose look is older than the other one's last repair: none of its words is an error by now."""
    lost = repaired(ledger)
    before, name = ledger.load(LOAD), lost.transaction.transactional_id
    ledger.record_repairing(LOAD, 1, "one was lost")
    assert ledger.open_repair(LOAD, 1, name, opened_by="late") is None
    assert ledger.record_outcomes(LOAD, 1, {name: Outcome.LOST}) == {name: Outcome.SUPERSEDED}
    assert ledger.record_in_doubt(LOAD, 1, "mixed") is False
    assert ledger.load(LOAD) == before


def test_a_repair_that_is_lost_is_repaired_in_turn(ledger: Ledger) -> None:
    lost = lost_one(ledger)
    first = open_repair(ledger, lost)
    adopt(ledger, first, lost)
    ledger.record_outcomes(LOAD, 1, {first.transactional_id: Outcome.LOST})
    again = next(t for t in ledger.transactions(LOAD, 1) if t.transaction == prepared(first))
    second = open_repair(ledger, again)
    assert (second.number, second.lost_transactional_id) == (3, first.transactional_id)
    adopt(ledger, second, again)
    outcomes = {t.transaction.transactional_id: t.outcome for t in ledger.transactions(LOAD, 1)}
    assert outcomes[first.transactional_id] is Outcome.SUPERSEDED
    ledger.record_outcomes(LOAD, 1, {second.transactional_id: Outcome.COMMITTED})
    assert ledger.record_committed(LOAD, 1).closed_at is not None


@pytest.mark.parametrize("final", [Outcome.COMMITTED, Outcome.LOST])
def test_what_the_markers_said_is_final_and_only_a_repair_supersedes(ledger: Ledger, final: Outcome) -> None:
    commit(ledger)
    name = ledger.transactions(LOAD, 1)[0].transaction.transactional_id
    ledger.record_outcomes(LOAD, 1, {name: final})
    for later in (Outcome.OPEN, Outcome.ABORTED, Outcome.IN_DOUBT, Outcome.COMMITTED, Outcome.LOST):
        assert ledger.record_outcomes(LOAD, 1, {name: later}) == {name: final}
    with pytest.raises(ConfigurationError, match="only by the repair"):
        ledger.record_outcomes(LOAD, 1, {name: Outcome.SUPERSEDED})


def test_repairing_is_recorded_once_and_not_of_a_finished_load(ledger: Ledger) -> None:
    lost_one(ledger)
    ledger.record_repairing(LOAD, 1, "one was lost")
    ledger.record_repairing(LOAD, 1, "again")
    row = ledger.load(LOAD)
    assert row is not None
    assert (row.state, row.reason) == (LoadState.REPAIRING, "one was lost")
    ledger.record_given_up(LOAD, by="ada", reason="x")
    with pytest.raises(UndecidableError, match="GIVEN_UP"):
        ledger.record_repairing(LOAD, 1, "again")


def test_a_load_is_given_up_by_name_and_nothing_follows(ledger: Ledger, url: str) -> None:
    lost = lost_one(ledger)
    row = open_repair(ledger, lost)
    ledger.record_given_up(LOAD, by="ada", reason="loaded by hand")
    ledger.record_given_up(LOAD, by="bob", reason="me too")
    known = ledger.load(LOAD)
    assert known is not None
    assert (known.state, known.reason) == (LoadState.GIVEN_UP, "given up by ada: loaded by hand")
    assert mapping(url) == set()
    assert [r.state for r in ledger.repairs(LOAD)] == [RepairState.UNDECIDABLE]
    assert adopt(ledger, row, lost).state is RepairState.UNDECIDABLE
    for call in (
        lambda: ledger.record_committed(LOAD, 1),
        lambda: ledger.record_in_doubt(LOAD, 1, "x"),
        lambda: open_repair(ledger, lost),
    ):
        with pytest.raises(KafkaEosError):
            call()
    assert ledger.begin(LOAD, owner="x").verdict is Verdict.COMMIT  # rule: one-key-loads-once
    assert load_state(ledger) is LoadState.GIVEN_UP


def test_only_a_decided_unfinished_load_is_given_up(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError):
        ledger.record_given_up(LOAD, by="ada", reason="x")
    prepare(ledger)
    with pytest.raises(UndecidableError):
        ledger.record_given_up(LOAD, by="ada", reason="x")
    ledger.decide_abort(ref(ledger, 1), decided_by="x", reason="x")
    commit(ledger)
    for t in ledger.transactions(LOAD, 2):
        ledger.record_outcomes(LOAD, 2, {t.transaction.transactional_id: Outcome.COMMITTED})
    ledger.record_committed(LOAD, 2)
    with pytest.raises(UndecidableError, match="COMMITTED cannot become GIVEN_UP"):
        ledger.record_given_up(LOAD, by="ada", reason="x")


def test_the_lost_row_itself_is_compared(ledger: Ledger, url: str) -> None:
    """The second line: even a repair that passes for open replaces nothing that was replaced."""
    lost = lost_one(ledger)
    first, second = open_repair(ledger, lost), open_repair(ledger, lost)
    adopt(ledger, first, lost)
    sql(url, "UPDATE kafka_eos_repairs SET state = 'open' WHERE number = 3")
    row = adopt(ledger, second, lost)
    assert (row.state, row.reason) == (
        RepairState.UNDECIDABLE,
        f"{lost.transaction.transactional_id} is not lost any more",
    )
