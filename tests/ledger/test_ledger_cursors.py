"""Cursors and ranges in the ledger, on each database.

Rules: cursor-moves-with-the-decision, range-is-pinned, one-load-per-cursor, cursor-in-doubt-stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    KafkaEosError,
    NotFinishedError,
    UndecidableError,
)
from airflow_kafka_eos.ledger import Ledger, migrate
from airflow_kafka_eos.ledger.rows import AttemptRow, CursorRow, RangeRow
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from tests.ledger.ledger_support import LOAD, manifest, ref, sql, verify

NAME = LOAD.name


def load(key: str) -> LoadIdentity:
    return LoadIdentity(LOAD.namespace, NAME, key)


A, B, C = load("a"), load("b"), load("c")


def submit(ledger: Ledger, of: LoadIdentity, interval: tuple[str, str] | None = None) -> int:
    ledger.begin(of, owner="begin", data_interval=interval)
    return ledger.submit(of, owner="prepare").number


def take(ledger: Ledger, of: LoadIdentity, until: Any = None, **more: Any) -> RangeRow:
    """A new attempt with its range, pinned where an end is given."""
    interval = more.pop("interval", None)
    found = ledger.take_range(of, submit(ledger, of, interval), **{"first_since": 0} | more)
    return found if until is None else ledger.pin_range(of, found.attempt, found.since, until)


def prepare(ledger: Ledger, of: LoadIdentity, number: int) -> None:
    ledger.mark_prepared(manifest(ledger, number, of))


def decide(ledger: Ledger, of: LoadIdentity, number: int) -> AttemptRow:
    prepare(ledger, of, number)
    return ledger.decide_commit(manifest(ledger, number, of), decided_by="decide")


def commit(ledger: Ledger, of: LoadIdentity, until: Any, **more: Any) -> RangeRow:
    """A whole load."""
    found = take(ledger, of, until, **more)
    decide(ledger, of, found.attempt)
    verify(ledger, of, found.attempt)
    return found


def abort(ledger: Ledger, of: LoadIdentity, number: int) -> None:
    ledger.make_undecidable(of, up_to=number, decided_by="cleanup", reason="gone")


def close(ledger: Ledger, of: LoadIdentity, number: int = 1) -> None:
    """Cleanup has seen that nothing of a load that was given up is open."""
    ledger.record_swept(of, number)


def cursor(ledger: Ledger) -> CursorRow:
    found = ledger.cursor(LOAD.namespace, NAME)
    assert found is not None
    return found


def put(ledger: Ledger, to: Any, seen: CursorRow | None = None, *, over_named: bool = False) -> CursorRow:
    seen = seen or cursor(ledger)
    said = {"expected": seen.position, "moves": seen.moves, "to": to, "by": "ann", "reason": "looked"}
    return ledger.set_cursor(LOAD.namespace, NAME, **said, over_named=over_named)


def test_the_decision_moves_the_cursor(ledger: Ledger) -> None:
    found = take(ledger, A, 10)
    assert (found.since, found.until, cursor(ledger).position) == (0, 10, 0)
    prepare(ledger, A, 1)
    assert cursor(ledger).position == 0
    ledger.decide_commit(manifest(ledger, 1, A), decided_by="decide")
    assert (cursor(ledger).position, cursor(ledger).moved_by) == (10, "decide")
    ledger.decide_commit(manifest(ledger, 1, A), decided_by="again")  # one decision, one move
    verify(ledger, A, 1)
    assert cursor(ledger).position == 10
    assert take(ledger, B).since == 10


def test_a_decision_that_is_undone_moves_nothing(ledger: Ledger) -> None:
    """By the author's SQL beside it, or a lost connection."""
    take(ledger, A, 10)
    prepare(ledger, A, 1)

    def fails(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.decide_commit(manifest(ledger, 1, A), decided_by="decide", dual_write=fails)
    assert cursor(ledger).position == 0
    row = ledger.attempt(A, 1)
    assert row is not None and row.verdict is None


def test_an_aborted_load_moves_nothing(ledger: Ledger) -> None:
    take(ledger, A, 10)
    prepare(ledger, A, 1)
    ledger.decide_abort(ref(ledger, 1, A), decided_by="decide", reason="refused")
    assert (cursor(ledger).position, take(ledger, B).since) == (0, 0)


def test_every_attempt_of_a_load_reads_the_range_of_the_first(ledger: Ledger) -> None:
    first = take(ledger, A, 10)
    again = take(ledger, A)
    assert (again.attempt, again.since, again.until) == (2, first.since, first.until)
    assert ledger.pin_range(A, 2, 0, 12).until == 10


def test_where_the_first_range_begins_the_dag_may_correct_until_something_is_loaded(ledger: Ledger) -> None:
    """A try that came to nothing has not said it for good: what lies before may be loaded by something else."""
    take(ledger, A, 10)
    prepare(ledger, A, 1)
    abort(ledger, A, 1)
    again = take(ledger, B, first_since=1000)
    assert (again.since, again.until) == (1000, None)
    mine = take(ledger, B, 1010, first_since=1001)  # of its own load: the first range was of another beginning
    assert (mine.since, mine.until) == (1001, 1010)
    prepare(ledger, B, mine.attempt)
    decide(ledger, B, mine.attempt)
    verify(ledger, B, mine.attempt)
    assert take(ledger, C, first_since=0).since == 1010, "from here on, the DAG has no say"


def test_an_end_that_had_nothing_or_was_refused_is_chosen_anew(ledger: Ledger) -> None:
    """Cleared once the data is there, it reads that; and not for ever what a check has refused."""
    take(ledger, A, 0)
    prepare(ledger, A, 1)
    ledger.decide_abort(ref(ledger, 1, A), decided_by="decide", reason="check: 0 records")
    assert take(ledger, A).until is None
    ledger.pin_range(A, 2, 0, 10)
    assert take(ledger, A).until == 10
    ledger.decide_abort(ref(ledger, 3, A), decided_by="decide", reason="check: 10 records, more than")
    assert take(ledger, A, chosen={1: 0}).until is None
    abort(ledger, A, 4)
    take(ledger, B, 0)
    abort(ledger, B, 1)
    assert take(ledger, B).until is None
    assert take(ledger, B, chosen={2: 0}).until is None


def test_the_same_range_is_answered_again_where_the_answer_was_lost(ledger: Ledger) -> None:
    found = take(ledger, A)
    assert ledger.take_range(A, 1, first_since=99) == found


def test_what_a_job_has_chosen_and_nobody_recorded_is_the_next_attempts_too(ledger: Ledger) -> None:
    take(ledger, A)
    again = take(ledger, A, chosen={1: 10})
    assert (again.attempt, again.until) == (2, 10)
    assert take(ledger, A, chosen={1: 10, 2: 11}).until == 10


def test_an_old_attempts_range_is_void_once_the_cursor_has_moved(ledger: Ledger) -> None:
    take(ledger, A, 10)
    abort(ledger, A, 1)
    commit(ledger, B, 12)
    again = take(ledger, A)
    assert (again.since, again.until) == (12, None)


def test_an_aborted_attempts_range_is_kept_while_the_cursor_stands(ledger: Ledger) -> None:
    take(ledger, A, 10)
    abort(ledger, A, 1)
    take(ledger, B, 12)
    abort(ledger, B, 1)
    assert take(ledger, A).until == 10


def test_a_second_load_waits_until_the_first_is_through(ledger: Ledger) -> None:
    found = take(ledger, A, 10)
    for step in (prepare, lambda *of: ledger.decide_commit(manifest(ledger, 1, A), decided_by="d")):
        with pytest.raises(NotFinishedError, match="has the cursor's last range") as waits:
            take(ledger, B)
        assert f"`airflow-kafka-eos cleanup {A.in_command}` aborts it" in waits.value.remedy
        with pytest.raises(NotFinishedError):
            ledger.check_cursor(B)
        step(ledger, A, found.attempt)
    with pytest.raises(NotFinishedError, match="COMMITTING") as waits:
        take(ledger, B)
    # a run is at work on it, most often: to give it up is for good
    assert f"`airflow-kafka-eos loads recover {A.in_command}`" in waits.value.remedy
    assert "give" not in waits.value.remedy
    verify(ledger, A, 1)
    ledger.check_cursor(B)
    assert take(ledger, B).since == 10


def test_a_load_in_doubt_blocks(ledger: Ledger) -> None:
    decide(ledger, A, take(ledger, A, 10).attempt)
    ledger.record_in_doubt(A, 1, "markers differ")
    with pytest.raises(InDoubtError, match="IN_DOUBT"):
        take(ledger, B)


def test_an_aborted_load_blocks_nobody(ledger: Ledger) -> None:
    take(ledger, A, 10)
    abort(ledger, A, 1)
    assert take(ledger, B, 12).since == 0
    # and where it comes again, it waits
    with pytest.raises(NotFinishedError):
        take(ledger, A)


def test_of_two_ranges_from_one_position_one_is_decided(ledger: Ledger) -> None:
    """The lock in front is not all: an attempt that was written with a range of before is refused by the count."""
    take(ledger, A, 10)
    prepare(ledger, A, 1)
    moves = cursor(ledger).moves
    sql(str(ledger.database.url.render_as_string(hide_password=False)), "UPDATE kafka_eos_cursors SET load_id = NULL")
    commit(ledger, B, 12)
    assert cursor(ledger).moves > moves
    assert "has moved" in ledger.why_not_advance(A, 1)
    with pytest.raises(UndecidableError, match="has moved"):
        ledger.decide_commit(manifest(ledger, 1, A), decided_by="late")
    assert (cursor(ledger).position, ledger.state(A)) == (12, LoadState.PREPARED)


def test_an_attempt_is_decided_with_its_own_range(ledger: Ledger) -> None:
    """Its load has another range on record, of an attempt that came to nothing."""
    take(ledger, A, 10)
    ledger.decide_abort(ref(ledger, 1, A), decided_by="decide", reason="check: too many")
    found = take(ledger, A, 7)
    decide(ledger, A, found.attempt)
    assert (found.attempt, cursor(ledger).position) == (2, 7)


def test_a_load_without_a_range_moves_nothing(ledger: Ledger) -> None:
    decide(ledger, A, submit(ledger, A))
    assert ledger.cursor(LOAD.namespace, NAME) is None


def test_a_range_without_an_end_is_not_decided(ledger: Ledger) -> None:
    found = take(ledger, A)
    prepare(ledger, A, found.attempt)
    with pytest.raises(UndecidableError, match="where its range ends"):
        ledger.decide_commit(manifest(ledger, 1, A), decided_by="d")


def test_an_empty_range_has_no_records(ledger: Ledger) -> None:
    take(ledger, A, 0)
    prepare(ledger, A, 1)
    assert "reads more than its range" in ledger.why_not_advance(A, 1), "it is asked before: what is refused is aborted"
    with pytest.raises(UndecidableError, match="reads more than its range"):
        ledger.decide_commit(manifest(ledger, 1, A), decided_by="d")
    abort(ledger, A, 1)
    found = take(ledger, B, 0)
    ledger.mark_prepared(manifest(ledger, found.attempt, B, full=0))
    ledger.decide_commit(manifest(ledger, found.attempt, B, full=0), decided_by="d")
    assert cursor(ledger).position == 0


def test_an_end_before_the_beginning_is_refused(ledger: Ledger) -> None:
    found = take(ledger, A, first_since=10)
    with pytest.raises(ConfigurationError, match="before 10"):
        ledger.pin_range(A, found.attempt, 10, 9)
    with pytest.raises(ConfigurationError, match="left out"):
        ledger.pin_range(A, found.attempt, 11, 12)


def test_partitions_that_were_added_begin_where_the_source_says(ledger: Ledger) -> None:
    found = take(ledger, A, first_since={"0": 3})
    pinned = ledger.pin_range(A, found.attempt, {"0": 3, "1": 0}, {"0": 5, "1": 2})
    assert pinned == ledger.range(A, 1)
    assert take(ledger, A, first_since={"0": 3}).since == {"0": 3, "1": 0}


def test_runs_of_the_past_are_refused_where_later_ones_have_read(ledger: Ledger) -> None:
    second, first = ("2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00"), (
        "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00")  # fmt: skip
    commit(ledger, B, 10, interval=second)
    with pytest.raises(ConfigurationError, match="mark it as success"):
        take(ledger, A, interval=first)
    assert take(ledger, A, named=(0, 5), interval=first).is_named
    assert take(ledger, C).since == 10  # a run by hand has no interval


def test_a_reload_reads_the_range_of_the_first_generation(ledger: Ledger) -> None:
    take(ledger, A, 10)
    with pytest.raises(NotFinishedError, match="not COMMITTED"):
        take(ledger, load("a~reload-2"))
    decide(ledger, A, 1)
    with pytest.raises(NotFinishedError, match="not COMMITTED"):
        take(ledger, load("a~reload-2"))
    verify(ledger, A, 1)
    commit(ledger, B, 20)
    again = commit(ledger, load("a~reload-3"), None)
    assert (again.since, again.until, again.is_named, cursor(ledger).position) == (0, 10, True, 20)


def test_a_reload_of_what_had_no_cursor_is_told_to_name_its_range(ledger: Ledger) -> None:
    decide(ledger, A, submit(ledger, A))
    verify(ledger, A, 1)
    with pytest.raises(ConfigurationError, match="without a cursor"):
        take(ledger, load("a~reload-2"))


def test_a_load_that_is_given_up_puts_its_cursor_back_and_in_doubt(ledger: Ledger) -> None:
    commit(ledger, A, 10)
    decide(ledger, B, take(ledger, B, 20).attempt)
    ledger.record_in_doubt(B, 1, "markers differ")
    ledger.record_given_up(B, by="ann", reason="never mind")
    assert cursor(ledger).position == 10
    assert "from 10 to 20" in str(cursor(ledger).doubt)
    for more in ({}, {"named": (1, 2)}):
        with pytest.raises(InDoubtError, match="cursors set"):
            take(ledger, C, **more)
    with pytest.raises(NotFinishedError, match="may become so"):
        put(ledger, 20)
    seen = cursor(ledger)
    close(ledger, B)
    with pytest.raises(ConfigurationError, match="it has moved"):
        put(ledger, 20, seen)  # what was open may be visible now
    put(ledger, 20)
    assert take(ledger, C).since == 20


def test_a_new_id_puts_every_cursor_in_doubt(ledger: Ledger) -> None:
    commit(ledger, A, 10)
    ledger.new_id(decided_by="ann")
    with pytest.raises(InDoubtError, match="restored from a backup"):
        take(ledger, B)
    with pytest.raises(InDoubtError):
        ledger.check_cursor(B, named=True)
    assert put(ledger, 30).doubt is None
    assert take(ledger, B).since == 30


@pytest.mark.parametrize("more", [{}, {"named": (1, 2)}])
def test_a_cursor_that_a_restored_ledger_does_not_have_is_in_doubt_too(ledger: Ledger, more: dict[str, Any]) -> None:
    """The backup is of before the first load with it: at first_since all would be read once more."""
    ledger.new_id(decided_by="ann")
    with pytest.raises(InDoubtError, match="--new"):
        take(ledger, B, **more)
    with pytest.raises(InDoubtError, match="--new"):
        ledger.check_cursor(B, named=bool(more))
    made = new(ledger, 20)
    assert (made.position, made.moves, made.moved_by) == (20, 1, "ann")
    assert take(ledger, B).since == 20, "not first_since"


def test_a_cursor_is_made_once(ledger: Ledger) -> None:
    made = new(ledger, 20)
    assert new(ledger, 20) == made, "the answer to COMMIT may have been lost"
    with pytest.raises(ConfigurationError, match="there is a cursor"):
        new(ledger, 21)
    assert cursor(ledger) == made


def test_one_that_begins_with_its_source_is_not_the_dags_any_more(ledger: Ledger) -> None:
    new(ledger, None)
    assert take(ledger, A, first_since=5).since is None


def new(ledger: Ledger, to: Any) -> CursorRow:
    return ledger.set_cursor(LOAD.namespace, NAME, expected=None, moves=None, to=to, by="ann", reason="looked")


def test_what_a_person_has_set_is_told_again(ledger: Ledger) -> None:
    """The ledger runs its work again where the answer to COMMIT was lost: that is no refusal."""
    commit(ledger, A, 10)
    seen = cursor(ledger)
    assert put(ledger, 5, seen) == put(ledger, 5, seen)
    with pytest.raises(ConfigurationError, match="it has moved"):
        put(ledger, 5, seen, over_named=True)  # that was not said
    with pytest.raises(ConfigurationError, match="it has moved"):
        put(ledger, 6, seen)


def test_doubt_stops_a_decision_too(ledger: Ledger) -> None:
    url = ledger.database.url.render_as_string(hide_password=False)
    take(ledger, A, 10)
    prepare(ledger, A, 1)
    sql(url, "UPDATE kafka_eos_cursors SET doubt = 'by hand'")
    with pytest.raises(UndecidableError, match="in doubt"):
        ledger.decide_commit(manifest(ledger, 1, A), decided_by="d")


def test_a_person_names_each_partition_of_a_topic(ledger: Ledger) -> None:
    """One that is left out would be read from its oldest record on."""
    new(ledger, {"offsets": {"orders": {"0": 900, "1": 900}}, "topic_ids": {"orders": "an id"}})
    with pytest.raises(ConfigurationError, match="does not name partitions orders-0, which"):
        put(ledger, {"offsets": {"orders": {"1": 950}}})
    put(ledger, {"offsets": {"orders": {"0": 900, "1": 950}}})


def test_a_person_names_each_partition_where_there_is_no_cursor_yet(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="does not name partitions orders-0, orders-1: they"):
        new(ledger, {"offsets": {"orders": {"2": 900}}})
    assert ledger.cursor("team", "load_orders") is None
    new(ledger, {"offsets": {"orders": {"0": 900, "1": 0}}})


def test_a_topic_that_was_made_anew_with_fewer_partitions_by_its_id(ledger: Ledger) -> None:
    """Where the cursor has no id of it, any is named first, as the error says: a partition is not left out unseen."""
    now = {"offsets": {"orders": {"0": 0}}, "topic_ids": {"orders": "new"}}
    old = {"offsets": {"orders": {"0": 900, "1": 900}}}
    new(ledger, old)
    with pytest.raises(ConfigurationError, match="does not name partitions orders-1, which") as refused:
        put(ledger, now)
    assert "with any text as the id in topic_ids" in str(refused.value.remedy)
    put(ledger, old | {"topic_ids": {"orders": "gone"}})
    put(ledger, now)


def test_a_person_sets_what_he_has_seen(ledger: Ledger) -> None:
    commit(ledger, A, 10)
    seen = cursor(ledger)
    commit(ledger, B, 20)
    with pytest.raises(ConfigurationError, match="it has moved"):
        put(ledger, 5, seen)
    assert cursor(ledger).position == 20
    with pytest.raises(ConfigurationError, match="no cursor"):
        ledger.set_cursor("team", "other", expected=0, moves=0, to=1, by="ann", reason="")
    with pytest.raises(ConfigurationError, match="which is first"):
        put(ledger, "2026-01-01")


def test_a_person_who_has_looked_before_a_load_was_visible_looks_again(ledger: Ledger) -> None:
    """The position is the same before and behind, and what topics show is not."""
    decide(ledger, A, take(ledger, A, 10).attempt)
    seen = cursor(ledger)
    with pytest.raises(NotFinishedError, match="COMMITTING"):
        put(ledger, 0, seen)
    verify(ledger, A, 1)
    assert cursor(ledger).position == seen.position
    with pytest.raises(ConfigurationError, match="it has moved"):
        put(ledger, 0, seen)


def test_a_load_under_way_is_not_decided_once_a_person_has_set_the_cursor(ledger: Ledger) -> None:
    take(ledger, A, 10)
    prepare(ledger, A, 1)
    put(ledger, 5)
    with pytest.raises(UndecidableError, match="has moved"):
        ledger.decide_commit(manifest(ledger, 1, A), decided_by="d")
    # not even where it was set to what it was, and whatever its retry had chosen before is void
    again = take(ledger, A)
    assert (again.since, again.until) == (5, None)


@pytest.mark.parametrize("round_", range(5))
def test_of_loads_that_come_at_once_one_has_the_cursor(ledger: Ledger, url: str, round_: int) -> None:
    numbers = {of: submit(ledger, of) for of in (A, B, C)}
    found = at_once(url, {of.key: partial(first_taken, of=of, number=n) for of, n in numbers.items()})
    assert sorted(type(row).__name__ for row in found.values()) == ["NotFinishedError", "NotFinishedError", "RangeRow"]


def first_taken(own: Ledger, *, of: LoadIdentity, number: int) -> RangeRow:
    return own.take_range(of, number, first_since=0)


def test_a_person_and_a_decision_at_once(ledger: Ledger, url: str) -> None:
    """One of both, never half of each: behind the decision the person is refused, behind the person the decision."""
    take(ledger, A, 10)
    seen = cursor(ledger)
    prepare(ledger, A, 1)
    found = at_once(
        url,
        {
            "decide": lambda own: own.decide_commit(manifest(ledger, 1, A), decided_by="d"),
            "set": lambda own: put(own, 5, seen),
        },
    )
    row = ledger.attempt(A, 1)
    decided = row is not None and row.verdict is Verdict.COMMIT
    assert isinstance(found["set"], KafkaEosError) == decided
    assert cursor(ledger).position == (10 if decided else 5)


def test_cursors_are_listed(ledger: Ledger) -> None:
    commit(ledger, A, 10)
    assert [row.position for row in ledger.cursors()] == [10]
    assert ledger.cursors("other") == []
    assert ledger.decided_keys(LOAD.namespace, NAME, ["a", "b"]) == {"a"}


def test_a_ledger_of_before_gets_the_tables(url: str) -> None:
    for table in ("ranges", "cursors"):
        sql(url, f"DROP TABLE kafka_eos_{table}")
    sql(url, "ALTER TABLE kafka_eos_ledger DROP COLUMN id_changed_at")
    sql(url, "UPDATE kafka_eos_alembic_version SET version_num = '0008'")
    migrate.upgrade(url)
    with Ledger.open(url) as ledger:
        commit(ledger, A, 10)
        assert cursor(ledger).position == 10
        ledger.new_id(decided_by="ann")
    sql(url, "UPDATE kafka_eos_alembic_version SET version_num = '0008'")
    migrate.upgrade(url)  # cut off before it said how far it was


def at_once(url: str, calls: dict[str, Callable[[Ledger], Any]]) -> dict[str, Any]:
    """What each call has returned or raised, all begun at one moment."""
    barrier, found = threading.Barrier(len(calls)), dict[str, Any]()

    def run(name: str, call: Callable[[Ledger], Any]) -> None:
        with Ledger.open(url) as own:
            barrier.wait(60)
            try:
                found[name] = call(own)
            except KafkaEosError as e:
                found[name] = e

    threads = [threading.Thread(target=run, args=one) for one in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found
