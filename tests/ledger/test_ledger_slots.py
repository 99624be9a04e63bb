"""Slots of pooled ids: leased at submission, held until the end is verified, quarantined unless clean.

Rule: verified-end-before-reuse.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, UndecidableError
from airflow_kafka_eos.ledger import AttemptRow, Ledger
from airflow_kafka_eos.ledger.attempts import record_swept
from airflow_kafka_eos.ledger.queries import must_lock
from airflow_kafka_eos.ledger.rows import SlotRow
from airflow_kafka_eos.ledger.slots import LONGEST_REQUEST_DELAY
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.transaction import MAX_PRODUCER_EPOCH, Outcome, PreparedTransaction, PreparedTxnState
from tests.ledger.ledger_support import LOAD, OTHER, manifest, sql
from tests.ledger.test_ledger_races import WAIT, race

POOLING = TransactionNaming.POOLING
HOUR_MS = 3_600_000


def load(number: int) -> LoadIdentity:
    return LoadIdentity("team", "load_orders", f"key {number}")


def submit(ledger: Ledger, of: LoadIdentity = LOAD, *, deadline_ms: int | None = None) -> AttemptRow:
    ledger.begin(of, owner="begin")
    deadline_ms = deadline_ms or int(time.time() * 1000) + HOUR_MS
    return ledger.submit(of, owner="prepare", naming=POOLING, deadline_ms=deadline_ms)


def pooled_manifest(ledger: Ledger, row: AttemptRow, *, full: int = 2) -> Manifest:
    ref = AttemptRef(row.load, ledger.ledger_id, row.number, row.slot)
    document = manifest(ledger, row.number, row.load, full=full)
    entries = [
        replace(e, transaction=PreparedTransaction(str(ref.task_id(e.spark_partition, 0)), e.transaction.state))
        if e.transaction is not None
        else e
        for e in document.entries
    ]
    return replace(document, attempt=ref, entries=tuple(entries), ran_again=False)


def prepare(ledger: Ledger, of: LoadIdentity = LOAD, *, writers_left: bool = False) -> Manifest:
    document = pooled_manifest(ledger, submit(ledger, of))
    ledger.mark_prepared(document, writers_left=writers_left)
    return document


def finish(ledger: Ledger, document: Manifest) -> None:
    """Decided, every marker seen."""
    of, number = document.attempt.load, document.attempt.attempt
    ledger.decide_commit(document, decided_by="d")
    outcomes = {t.transactional_id: Outcome.COMMITTED for t in document.transactions}
    ledger.record_outcomes(of, number, outcomes)
    ledger.record_committed(of, number)


def slot_of(ledger: Ledger, number: int = 0) -> SlotRow:
    found = ledger.slot("team", "load_orders", number)
    assert found is not None
    return found


def test_the_lowest_free_slot_is_leased_and_a_new_one_when_none_is(ledger: Ledger) -> None:
    rows = [submit(ledger, load(n)) for n in range(3)]
    assert [r.slot for r in rows] == [0, 1, 2]
    for n in (1, 0):
        document = pooled_manifest(ledger, rows[n])
        ledger.mark_prepared(document, writers_left=False)
        finish(ledger, document)
    assert [submit(ledger, load(n)).slot for n in (10, 11, 12)] == [0, 1, 3]
    assert [(s.number, s.holder.key) for s in ledger.slots("team", "load_orders")] == [
        (0, "key 10"), (1, "key 11"), (2, "key 2"), (3, "key 12"),
    ]  # fmt: skip
    assert submit(ledger, LoadIdentity("team", "another name", "x")).slot == 0
    assert submit(ledger, LoadIdentity("another team", "load_orders", "x")).slot == 0


def test_an_incrementing_attempt_has_no_slot(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="b")
    assert ledger.submit(LOAD, owner="p").slot is None
    assert ledger.slots() == []


def test_pooling_wants_a_deadline(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="b")
    with pytest.raises(ConfigurationError, match="deadline"):
        ledger.submit(LOAD, owner="p", naming=POOLING)


def test_every_submitted_application_has_a_slot_of_its_own(ledger: Ledger) -> None:
    ledger.begin(LOAD, owner="b")
    first, retried = submit(ledger), ledger.submit(LOAD, owner="retry", naming=POOLING, deadline_ms=10**13)
    assert (first.slot, retried.slot) == (0, 1)
    assert slot_of(ledger).is_leased, "the first application may still run"


def test_a_slot_is_held_until_the_end_is_verified(ledger: Ledger) -> None:
    document = prepare(ledger)
    assert slot_of(ledger).is_leased
    ledger.decide_commit(document, decided_by="d")
    assert slot_of(ledger).is_leased
    assert submit(ledger, OTHER).slot == 1
    outcomes = {t.transactional_id: Outcome.COMMITTED for t in document.transactions}
    ledger.record_outcomes(LOAD, 1, outcomes)
    assert slot_of(ledger).is_leased
    ledger.record_committed(LOAD, 1)
    assert not slot_of(ledger).is_leased


def test_an_id_comes_again_and_each_transaction_keeps_its_own_outcome(ledger: Ledger) -> None:
    first = prepare(ledger)
    finish(ledger, first)
    # another state under the same ids, as the broker's next epoch gives it
    row = submit(ledger, OTHER)
    again = pooled_manifest(ledger, row)
    again = replace(
        again,
        entries=tuple(
            replace(e, transaction=replace(e.transaction, state=replace(e.transaction.state, producer_epoch=77)))
            if e.transaction
            else e
            for e in again.entries
        ),
    )
    ledger.mark_prepared(again, writers_left=False)
    assert [t.transactional_id for t in again.transactions] == [t.transactional_id for t in first.transactions]
    ledger.decide_commit(again, decided_by="d")
    ids = [t.transactional_id for t in again.transactions]
    ledger.record_outcomes(OTHER, 1, dict.fromkeys(ids, Outcome.OPEN))
    assert {t.outcome for t in ledger.transactions(LOAD, 1)} == {Outcome.COMMITTED}
    assert {t.outcome for t in ledger.transactions(OTHER, 1)} == {Outcome.OPEN}
    assert ledger.slot_ids("team", "load_orders", 0) == ids
    for document in (first, again):
        committed = {t.transactional_id: {t.state} for t in document.transactions}
        for step in (0, 1):
            shown = [stepped(t, step) for t in document.transactions]
            assert ledger.decided_states(shown) == committed, "and nothing else of the ids' history is read"
        assert ledger.decided_states([stepped(t, 2) for t in document.transactions]) == {}


def stepped(transaction: PreparedTransaction, epochs: int) -> PreparedTransaction:
    state = transaction.state
    return replace(transaction, state=replace(state, producer_epoch=state.producer_epoch + epochs))


@pytest.mark.parametrize("epoch", [MAX_PRODUCER_EPOCH - 1, MAX_PRODUCER_EPOCH])
def test_a_commit_that_has_used_up_the_epochs_is_found_under_another_producer_id(
    ledger: Ledger, epoch: int
) -> None:
    document = pooled_manifest(ledger, submit(ledger), full=1)
    (entry,) = (e for e in document.entries if e.transaction is not None)
    assert entry.transaction is not None
    last = replace(entry.transaction, state=replace(entry.transaction.state, producer_epoch=epoch))
    entries = tuple(replace(e, transaction=last) if e is entry else e for e in document.entries)
    document = replace(document, entries=entries)
    ledger.mark_prepared(document, writers_left=False)
    anew = [replace(last, state=PreparedTxnState(last.state.producer_id + 1, n)) for n in (0, 1)]
    assert ledger.decided_states(anew) == {}, "not decided"
    ledger.decide_commit(document, decided_by="d")
    assert ledger.decided_states(anew[:1]) == {last.transactional_id: {last.state}}
    assert ledger.decided_states(anew[1:]) == {}


def test_what_was_decided_to_be_aborted_is_no_commit_that_the_ledger_knows(ledger: Ledger) -> None:
    document = prepare(ledger)
    assert ledger.decide_abort(document.attempt, decided_by="d", reason="refused")
    assert ledger.decided_states(document.transactions) == {}


def test_the_ids_to_describe_by_name_are_those_of_the_last_attempts(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_kafka_eos.ledger.slots._LAST_ATTEMPTS", 1)
    finish(ledger, prepare(ledger))
    assert len(ledger.slot_ids("team", "load_orders", 0)) == 2
    submit(ledger, OTHER)
    assert ledger.slot_ids("team", "load_orders", 0) == []


def test_a_slot_with_writers_left_is_quarantined_after_a_commit_too(ledger: Ledger, url: str) -> None:
    row = submit(ledger)
    ledger.note_slot_checked(row)
    document = pooled_manifest(ledger, row)
    ledger.mark_prepared(document, writers_left=True)
    finish(ledger, document)
    slot = slot_of(ledger)
    assert not slot.is_leased
    found = ledger.attempt(LOAD, 1)
    assert found is not None and found.writers_until is not None
    until = datetime.fromisoformat(found.writers_until) + LONGEST_REQUEST_DELAY
    assert slot.quarantined_until == until.isoformat(timespec="microseconds")
    assert submit(ledger, OTHER).slot == 1
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat(timespec="microseconds")
    sql(url, "UPDATE kafka_eos_slots SET quarantined_until = :past WHERE number = 0", past=past)
    assert submit(ledger, load(3)).slot == 0
    assert slot_of(ledger).quarantined_until is None


@pytest.mark.parametrize(
    ("reported", "writers_left", "quarantined"),
    [(False, None, True), (True, True, True), (True, False, False)],
    ids=["killed", "run twice", "refused"],
)
def test_a_swept_attempt_frees_its_slot_at_once_only_when_it_said_how_it_ended(
    ledger: Ledger, reported: bool, writers_left: bool | None, quarantined: bool
) -> None:
    row = submit(ledger)
    ledger.note_slot_checked(row)
    if reported:
        ledger.mark_prepared(pooled_manifest(ledger, row), writers_left=bool(writers_left))
    ledger.make_undecidable(LOAD, up_to=1, decided_by="c", reason="x")
    assert slot_of(ledger).is_leased
    ledger.record_swept(LOAD, 1)
    slot = slot_of(ledger)
    assert (slot.is_leased, slot.quarantined_until is not None) == (False, quarantined)
    assert submit(ledger, OTHER).slot == (1 if quarantined else 0)


def test_a_slot_that_no_application_was_told_of_is_free_at_once(ledger: Ledger) -> None:
    """As behind a broker that was away for a moment just when the slot was to be looked at."""
    submit(ledger)
    ledger.make_undecidable(LOAD, up_to=1, decided_by="c", reason="x")
    ledger.record_swept(LOAD, 1)
    assert slot_of(ledger).quarantined_until is None
    assert submit(ledger, OTHER).slot == 0


def fail(ledger: Ledger, row: AttemptRow) -> None:
    ledger.make_undecidable(row.load, up_to=row.number, decided_by="c", reason="x")
    ledger.record_swept(row.load, row.number)


def end_quarantine(url: str) -> None:
    sql(url, "UPDATE kafka_eos_slots SET quarantined_until = :past", past="2020-01-01T00:00:00.000000+00:00")


def test_who_fails_before_the_look_leaves_the_slot_as_it_was(ledger: Ledger) -> None:
    """However many: retries while brokers are away."""
    document = prepare(ledger)
    finish(ledger, document)
    for of in (OTHER, load(1), OTHER):
        row = submit(ledger, of)
        assert (row.slot, row.left_slot) == (0, (LOAD, 1))
        fail(ledger, row)


@pytest.mark.parametrize("prepared", [False, True], ids=["killed", "run twice"])
def test_what_a_slot_shows_is_not_known_behind_a_writer_that_was_left(
    ledger: Ledger, url: str, prepared: bool
) -> None:
    if not prepared:
        finish(ledger, prepare(ledger))
    # whose quarantine is over, so that its deadline is past
    row = submit(ledger, OTHER, deadline_ms=1)
    ledger.note_slot_checked(row)
    if prepared:
        ledger.mark_prepared(pooled_manifest(ledger, row), writers_left=True)
    fail(ledger, row)
    end_quarantine(url)
    for n in range(2):  # and behind one that fails before the look
        row = submit(ledger, load(n))
        assert (row.slot, row.left_slot) == (0, None)
        fail(ledger, row)


def test_a_manifest_of_another_slot_is_refused(ledger: Ledger) -> None:
    submit(ledger, OTHER)
    row = submit(ledger)
    for wrong in (0, None):
        with pytest.raises(UndecidableError, match="has leased slot 1"):
            ledger.mark_prepared(pooled_manifest(ledger, replace(row, slot=wrong)), writers_left=False)
    assert ledger.mark_prepared(pooled_manifest(ledger, row)).writers_left is True


def test_while_a_slot_is_in_doubt_nothing_of_its_name_is_submitted(ledger: Ledger) -> None:
    row = submit(ledger)
    ledger.put_slot_in_doubt("team", "load_orders", 0, "committed as 7:8")
    ledger.make_undecidable(LOAD, up_to=row.number, decided_by="c", reason="x")
    ledger.record_swept(LOAD, row.number)
    ledger.begin(OTHER, owner="b")
    with pytest.raises(InDoubtError, match=r"slot 0.*committed as 7:8"):
        ledger.submit(OTHER, owner="p", naming=POOLING, deadline_ms=10**13)
    assert submit(ledger, LoadIdentity("team", "another name", "x")).slot == 0
    assert (ledger.settle_slot("team", "load_orders", 0), ledger.settle_slot("team", "load_orders", 0)) == (True, False)
    assert submit(ledger, OTHER).slot == 1
    slot = slot_of(ledger)
    assert (slot.is_retired, slot.is_leased, slot.checked_at) == (True, False, None)


def test_a_slot_that_was_settled_is_never_leased_again_whoever_held_it(ledger: Ledger) -> None:
    document = prepare(ledger)
    ledger.put_slot_in_doubt("team", "load_orders", 0, "committed as 7:8")
    assert ledger.settle_slot("team", "load_orders", 0)
    finish(ledger, document)  # its holder goes on
    assert slot_of(ledger).is_retired
    assert submit(ledger, OTHER).slot == 1


def test_a_slot_is_unchecked_with_every_lease(ledger: Ledger) -> None:
    row = submit(ledger)
    assert slot_of(ledger).checked_at is None
    ledger.note_slot_checked(row)
    assert slot_of(ledger).checked_at is not None
    document = pooled_manifest(ledger, row)
    ledger.mark_prepared(document, writers_left=False)
    finish(ledger, document)
    assert slot_of(ledger).checked_at is not None
    assert submit(ledger, OTHER).slot == 0
    assert slot_of(ledger).checked_at is None


def test_a_look_counts_for_who_holds_the_slot_alone(ledger: Ledger) -> None:
    """Loads of one name share their slots, and each has an attempt 1."""
    late = submit(ledger)
    fail(ledger, late)
    assert (ledger.note_slot_checked(late), slot_of(ledger).checked_at) == (False, None)
    holder = submit(ledger, OTHER)
    assert (holder.slot, holder.number) == (late.slot, late.number)
    assert (ledger.note_slot_checked(late), slot_of(ledger).checked_at) == (False, None)
    again = [ledger.note_slot_checked(holder) for _ in range(2)]  # the answer to COMMIT was lost
    assert again == [True, True] and slot_of(ledger).checked_at is not None


def test_a_look_is_noted_before_its_slot_is_given_back_or_counts_for_nothing(ledger: Ledger) -> None:
    """Else it could be given back without a quarantine to somebody else, while its holder begins to write."""
    row = submit(ledger)
    ledger.make_undecidable(LOAD, up_to=1, decided_by="c", reason="x")
    noted: list[bool] = []
    noting = threading.Thread(target=lambda: noted.append(ledger.note_slot_checked(row)))

    def give_back(connection: Connection) -> None:
        must_lock(connection, LOAD)
        noting.start()
        noting.join(0.5)
        assert noting.is_alive(), "it waits for the load's row"
        record_swept(connection, LOAD, 1)

    ledger.database.write(give_back)
    noting.join(WAIT)
    assert noted == [False]
    assert (slot_of(ledger).is_leased, slot_of(ledger).quarantined_until) == (False, None)


def test_two_leases_never_share_a_slot(ledger: Ledger) -> None:
    """Loads of one name at once, some slots free and some not there yet."""
    taken: set[int] = set()
    for seed in range(6):
        free = [prepare(ledger, load(100 * seed + n)) for n in range(2)]
        for document in free:
            finish(ledger, document)
        rivals = [load(100 * seed + 10 + n) for n in range(4)]
        for rival in rivals:
            ledger.begin(rival, owner="b")
        rows = race(
            seed,
            *(
                lambda r=r: ledger.submit(r, owner="p", naming=POOLING, deadline_ms=10**13)
                for r in rivals
            ),
        )
        slots = {row.slot for row in rows}
        assert len(slots) == 4
        assert not slots & taken
        taken |= slots
    held = [s for s in ledger.slots() if s.is_leased]
    assert len({(s.holder, s.attempt) for s in held}) == len(held) == 24


def test_the_ledgers_clock_is_now(ledger: Ledger) -> None:
    assert abs((ledger.clock() - datetime.now(UTC)).total_seconds()) < 60


def test_a_decided_load_leases_nothing(ledger: Ledger) -> None:
    finish(ledger, prepare(ledger))
    assert submit(ledger).verdict is Verdict.COMMIT
    assert not slot_of(ledger).is_leased
