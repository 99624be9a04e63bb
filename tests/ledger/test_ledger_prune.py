"""Pruning: what it takes, what it leaves for ever, and that a load that was pruned behaves as before.

Rule: one-key-loads-once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_kafka_eos.ledger import AttemptRow, Ledger, pruning
from airflow_kafka_eos.ledger.pruning import Prunable
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, PreparedTxnState
from tests.ledger.ledger_support import LOAD, OTHER, commit, manifest, prepare, ref, sql, verify
from tests.ledger.test_ledger_races import race
from tests.ledger.test_ledger_slots import finish, load, pooled_manifest, submit

NOW = timedelta(0)


def committed(ledger: Ledger, of: LoadIdentity = LOAD) -> AttemptRow:
    return verify(ledger, of, commit(ledger, of).number)


def aborted(ledger: Ledger, of: LoadIdentity = LOAD) -> int:
    number = prepare(ledger, of).number
    ledger.make_undecidable(of, up_to=number, decided_by="x", reason="refused")
    return number


def used(ledger: Ledger, of: LoadIdentity, epoch: int, *, full: int = 2, is_finished: bool = True) -> Manifest:
    """A load with a slot of pooled ids, committed."""
    document = pooled_manifest(ledger, submit(ledger, of), full=full)
    entries = [
        e
        if (was := e.transaction) is None
        else replace(e, transaction=replace(was, state=PreparedTxnState(was.state.producer_id, epoch)))
        for e in document.entries
    ]
    document = replace(document, entries=tuple(entries))
    ledger.mark_prepared(document, writers_left=False)
    if is_finished:
        finish(ledger, document)
    return document


def pruned(ledger: Ledger, older_than: timedelta = NOW, namespace: str | None = None) -> tuple[int, int]:
    """Attempts and transactions; as many as were foretold."""
    foretold = ledger.prunable(older_than, namespace=namespace)
    done = list(ledger.prune(older_than, namespace=namespace))
    found = (sum(one.attempts for one in done), sum(one.transactions for one in done))
    assert foretold == Prunable(*found)
    return found


def test_transactions_of_committed_and_of_swept_attempts_go_and_nothing_else(ledger: Ledger) -> None:
    ledger.record_swept(LOAD, aborted(ledger))
    committed(ledger)
    before, load_before, attempts = ledger.summary(LOAD, 2), ledger.load(LOAD), ledger.attempts(LOAD)
    names = [t.transaction for t in ledger.transactions(LOAD, 2)]
    assert (before.transactions, before.topics["orders"]["offsets"]) == (2, {"0": [5, 14], "1": [5, 14]})
    assert pruned(ledger) == (2, 4)
    assert ledger.transactions(LOAD, 1) == ledger.transactions(LOAD, 2) == []
    assert ledger.prepared_as([t.state for t in names]) == []
    assert ledger.summary(LOAD, 2) == replace(before, topic_ids={}) and ledger.summary(LOAD, 1).topics == {}
    assert ledger.load(LOAD) == load_before
    now = ledger.attempts(LOAD)
    assert all(row.pruned_at is not None for row in now)
    assert [replace(row, pruned_at=None) for row in now] == attempts
    assert pruned(ledger) == (0, 0)


def test_what_is_open_undecided_given_up_or_in_doubt_is_left_whole(ledger: Ledger) -> None:
    keep = [LoadIdentity("team", "kept", str(n)) for n in range(6)]
    prepare(ledger, keep[0])
    aborted(ledger, keep[1])  # not swept yet
    commit(ledger, keep[2])  # its markers were not seen yet
    for given_up in keep[3:5]:
        commit(ledger, given_up)
        ledger.record_given_up(given_up, by="x", reason="x")
    ledger.record_swept(keep[4], 1)
    commit(ledger, keep[5])
    ledger.record_in_doubt(keep[5], 1, "x")
    assert pruned(ledger) == (0, 0)
    assert [len(ledger.transactions(of, 1)) for of in keep] == [2] * 6


def test_what_was_closed_lately_is_left_and_so_are_other_namespaces(ledger: Ledger, url: str) -> None:
    committed(ledger)
    committed(ledger, LoadIdentity("other", "l", "k"))
    assert pruned(ledger, timedelta(days=1)) == (0, 0)
    assert pruned(ledger, NOW, "nobody") == (0, 0)
    assert pruned(ledger, NOW, "team") == (1, 2)
    assert pruned(ledger) == (1, 2)
    assert sql(url, "SELECT count(*) FROM kafka_eos_transactions") == [(0,)]


def test_many_are_pruned_in_steps_that_are_whole_each(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        committed(ledger, LoadIdentity("team", "many", str(number)))
    monkeypatch.setattr(pruning, "ATTEMPTS_AT_ONCE", 2)
    steps = ledger.prune(NOW)
    assert next(steps).attempts == 2
    del steps  # interrupted
    assert sum(row.pruned_at is not None for _, row in ledger.overview() if row) == 2
    monkeypatch.setattr(pruning, "TRANSACTIONS_AT_ONCE", 2)
    assert [(done.attempts, done.transactions) for done in ledger.prune(NOW)] == [(1, 2)] * 3


def test_a_pruned_load_is_loaded_no_second_time(ledger: Ledger) -> None:
    ledger.record_swept(LOAD, aborted(ledger))
    decided = commit(ledger)
    verify(ledger, LOAD, 2)
    pruned(ledger)
    # a cleared begin and prepare, and what a task that hung since then comes back to say
    assert ledger.begin(LOAD, owner="again").number == 2
    assert ledger.submit(LOAD, owner="again").verdict is Verdict.COMMIT
    document = manifest(ledger, 2)
    assert ledger.mark_prepared(document).verdict is Verdict.COMMIT
    assert ledger.decide_commit(document, decided_by="again").decided_by == decided.decided_by
    assert ledger.record_committed(LOAD, 2).number == 2
    assert ledger.decide_abort(ref(ledger, 2), decided_by="x", reason="x") is False
    assert ledger.record_repairing(LOAD, 2, "x") is False
    assert (ledger.state(LOAD), len(ledger.attempts(LOAD))) == (LoadState.COMMITTED, 2)


def test_a_load_goes_on_behind_attempts_that_were_pruned(ledger: Ledger) -> None:
    ledger.record_swept(LOAD, aborted(ledger))
    assert pruned(ledger) == (1, 2)
    assert committed(ledger).number == 2
    assert pruned(ledger) == (1, 2)


def test_a_repair_that_is_not_ended_keeps_its_attempt(ledger: Ledger) -> None:
    commit(ledger)
    lost, other = (t.transaction.transactional_id for t in ledger.transactions(LOAD, 1))
    ledger.record_outcomes(LOAD, 1, {lost: Outcome.LOST, other: Outcome.COMMITTED})
    late = ledger.open_repair(LOAD, 1, lost, opened_by="x")
    good = ledger.open_repair(LOAD, 1, lost, opened_by="x")
    assert late is not None and good is not None
    writes = ledger.transactions(LOAD, 1)[0].writes
    moved = tuple(replace(w, first_offset=100, last_offset=109) for w in writes)
    own = PreparedTransaction(good.transactional_id, PreparedTxnState(77, 0))
    ledger.adopt(LOAD, good.number, own, moved)
    ledger.record_outcomes(LOAD, 1, {own.transactional_id: Outcome.COMMITTED})
    ledger.record_committed(LOAD, 1)
    assert pruned(ledger) == (0, 0)
    ledger.close_repairs(LOAD, [late.number])
    before = ledger.summary(LOAD, 1)
    assert (before.transactions, before.repaired) == (2, 1)
    assert before.topics["orders"]["offsets"] == {"0": [100, 109], "1": [5, 14]}
    assert pruned(ledger) == (1, 3)
    assert ledger.summary(LOAD, 1) == replace(before, topic_ids={})
    assert [r.number for r in ledger.repairs(LOAD)] == [late.number, good.number]


def test_who_used_a_pooled_id_last_keeps_what_it_has_done(ledger: Ledger) -> None:
    """Its coordinator may show that commit, and the next lease asks whether it was decided."""
    documents = [used(ledger, load(number), number, full=full) for number, full in enumerate((3, 2, 2))]
    ids = ledger.slot_ids("team", "load_orders", 0)
    shown = [t for document in documents for t in document.transactions]
    last = [documents[0].transactions[2], *documents[2].transactions]
    assert ledger.has_pruned("team", "load_orders", 0) is False
    # the first was the last one to use its third id
    assert pruned(ledger) == (1, 2)
    assert [bool(ledger.transactions(load(n), 1)) for n in range(3)] == [True, False, True]
    assert ledger.slot_ids("team", "load_orders", 0) == ids
    decided = ledger.decided_states(shown)
    assert all(t.state in decided[t.transactional_id] for t in last)
    assert ledger.has_pruned("team", "load_orders", 0) is True
    assert ledger.has_pruned("team", "load_orders", 1) is ledger.has_pruned("team", "x", 0) is False
    used(ledger, load(3), 3, full=2, is_finished=False)
    assert pruned(ledger) == (1, 2)  # of the third; nothing of who holds the slot


def test_who_has_used_a_slot_later_is_told_by_when_it_prepared(ledger: Ledger) -> None:
    """Attempt numbers are given at begin: one that was begun first may lease the slot second."""
    ledger.begin(LOAD, owner="begun first")
    used(ledger, OTHER, 1)
    used(ledger, LOAD, 2)
    assert pruned(ledger) == (0, 0)
    used(ledger, load(3), 3)
    assert pruned(ledger) == (2, 4)
    assert ledger.transactions(load(3), 1) != []


def test_two_who_prune_at_the_same_time_prune_each_attempt_once(ledger: Ledger, url: str) -> None:
    for number in range(6):
        committed(ledger, LoadIdentity("team", "both", str(number)))
    found = race(1, *[lambda: sum(done.attempts for done in ledger.prune(NOW))] * 2)
    assert sum(found) == 6
    assert sql(url, "SELECT count(*) FROM kafka_eos_summaries") == [(6,)]


def test_an_attempt_that_was_pruned_since_it_was_found_is_passed_over(
    ledger: Ledger, url: str
) -> None:
    committed(ledger)
    ((attempt_id,),) = sql(url, "SELECT id FROM kafka_eos_attempts")
    with ledger.database.engine.begin() as connection:
        assert pruning._prune(connection, LOAD, attempt_id, 1, "9999") == 2
        assert pruning._prune(connection, LOAD, attempt_id, 1, "9999") is None
