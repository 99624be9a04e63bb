"""Ranges by name in the ledger, beside each other and beside the cursor, on each database.

Rule: range-is-pinned.
"""

from __future__ import annotations

from functools import partial

import pytest

from airflow_kafka_eos.errors import ConfigurationError, NotFinishedError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.ledger.rows import RangeRow
from airflow_kafka_eos.load import LoadIdentity
from tests.ledger.ledger_support import verify
from tests.ledger.test_ledger_cursors import (
    A,
    B,
    C,
    abort,
    at_once,
    close,
    commit,
    cursor,
    decide,
    load,
    put,
    submit,
    take,
)  # fmt: skip


def test_a_range_by_name_says_nothing_of_where_the_first_one_begins(ledger: Ledger) -> None:
    commit(ledger, A, None, named=(0, 5), first_since=None)
    assert cursor(ledger).position is None
    assert take(ledger, B, first_since=7).since == 7


@pytest.mark.parametrize("end", [5, 3, 7])
def test_a_range_is_named_by_one_key(ledger: Ledger, end: int) -> None:
    """One conf goes to every run of a backfill."""
    named = commit(ledger, A, None, named=(0, 5))
    for step in (ledger.check_named_range, lambda of, given: take(ledger, of, named=given)):
        with pytest.raises(ConfigurationError, match="once more"):
            step(B, (end - 3, end))
    reloaded = load("a~reload-2")
    assert take(ledger, reloaded, named=(0, 5)).until == named.until, "a reload says that it is meant"
    assert take(ledger, B, named=(5, 6)).is_named


def test_a_range_that_came_to_nothing_may_be_named_by_another_key(ledger: Ledger) -> None:
    take(ledger, A, named=(0, 5))
    with pytest.raises(ConfigurationError, match="is about to"):
        take(ledger, B, named=(0, 5))
    abort(ledger, A, 1)
    number = take(ledger, B, named=(0, 5)).attempt
    decide(ledger, B, number)
    ledger.record_given_up(B, by="ann", reason="never mind")
    with pytest.raises(NotFinishedError, match="nothing of it is open"):
        take(ledger, C, named=(0, 5))
    close(ledger, B, number)
    assert take(ledger, C, named=(0, 5)).is_named


def test_a_reload_of_an_own_range_is_no_range_by_name(ledger: Ledger) -> None:
    commit(ledger, A, 100)
    commit(ledger, load("a~reload-2"), None)
    assert take(ledger, B, named=(10, 20)).is_named
    commit(ledger, C, 200)


def test_what_the_cursor_is_yet_to_read_is_not_named(ledger: Ledger) -> None:
    commit(ledger, A, 1000)
    for end in (1001, 2000):
        with pytest.raises(ConfigurationError, match="its own loads would read"):
            take(ledger, B, named=(500, end))
    assert take(ledger, C, named=(500, 1000)).is_named
    put(ledger, 2000)  # a person says that it goes on behind it
    assert take(ledger, B, named=(1000, 2000)).is_named


def test_what_the_cursors_own_load_is_writing_is_not_named(ledger: Ledger) -> None:
    commit(ledger, A, 1000)
    number = take(ledger, B).attempt
    with pytest.raises(NotFinishedError, match="is not through"):
        take(ledger, C, named=(500, 1500))
    ledger.pin_range(B, number, 1000, 2000)
    decide(ledger, B, number)
    with pytest.raises(NotFinishedError, match="is not through"):  # it may be given up yet
        take(ledger, C, named=(1000, 2000))
    assert take(ledger, C, named=(500, 1000)).is_named
    verify(ledger, B, number)
    assert take(ledger, load("d"), named=(1000, 2000)).is_named, "a part of the past, once more"


def test_a_cursor_does_not_begin_over_what_was_named_before(ledger: Ledger) -> None:
    """A new load name is loaded by names, and then reads on from its beginning."""
    commit(ledger, A, None, named=(1000, 2000))
    take(ledger, B)
    with pytest.raises(ConfigurationError, match="has named the range from 1000 to 2000, a part of what"):
        ledger.pin_range(B, 1, 0, 3000)
    assert ledger.pin_range(B, 1, 0, 1000).until == 1000
    abort(ledger, B, 1)
    put(ledger, 2000)
    assert commit(ledger, B, 3000).since == 2000


def test_a_cursor_that_its_own_loads_have_moved_does_not_read_on_over_what_was_named_ahead_of_it(
    ledger: Ledger,
) -> None:
    commit(ledger, A, None, named=(2000, 3000))
    assert commit(ledger, B, 1000).since == 0
    take(ledger, C)
    with pytest.raises(ConfigurationError, match="has named the range from 2000 to 3000, a part of what"):
        ledger.pin_range(C, 1, 1000, 3500)
    abort(ledger, C, 1)
    put(ledger, 1000)  # once more, on purpose
    assert commit(ledger, C, 2500).since == 1000
    assert commit(ledger, load("d"), 3500).since == 2500, "said once"


def test_a_range_that_a_retry_inherits_is_not_over_what_was_named_meanwhile(ledger: Ledger) -> None:
    take(ledger, A, 2000)
    abort(ledger, A, 1)
    ledger.begin(B, owner="begin")
    commit(ledger, B, None, named=(1000, 2000))
    with pytest.raises(ConfigurationError, match="a part of what the cursor would read"):
        take(ledger, A)


def test_ranges_of_days_and_of_times_are_compared_by_their_days(ledger: Ledger) -> None:
    commit(ledger, A, None, named=("2026-01-01", "2026-01-02"), first_since=None)
    named = ("2026-02-01T00:00:00+00:00", "2026-02-02T00:00:00+00:00")
    assert take(ledger, B, named=named, first_since=None).is_named
    with pytest.raises(ConfigurationError, match="once more"):
        take(ledger, C, named=("2026-01-01T12:00:00", "2026-01-03T00:00:00"), first_since=None)
    with pytest.raises(ConfigurationError, match=r"that of team/load_orders/a.*nobody can tell"):
        take(ledger, C, named=(1, 2), first_since=None)


@pytest.mark.parametrize("round_", range(3))
def test_of_equal_ranges_by_name_that_come_at_once_one_is_taken(ledger: Ledger, url: str, round_: int) -> None:
    numbers = {of: submit(ledger, of) for of in (A, B, C)}
    found = at_once(url, {of.key: partial(taken, of=of, number=n) for of, n in numbers.items()})
    assert sorted(type(row).__name__ for row in found.values()) == [*2 * ["ConfigurationError"], "RangeRow"]


def taken(own: Ledger, *, of: LoadIdentity, number: int) -> RangeRow:
    return own.take_range(of, number, named=(0, 5))


def test_a_named_range_asks_no_position_and_moves_none(ledger: Ledger) -> None:
    commit(ledger, A, 10)
    take(ledger, B, 12)
    named = commit(ledger, C, None, named=(2, 4), first_since=99)
    assert (named.since, named.until, named.moves) == (2, 4, None)
    assert cursor(ledger).position == 10
    holder = cursor(ledger).holder
    assert holder == B
    with pytest.raises(ConfigurationError, match="which is first"):
        take(ledger, load("d"), named=("2026-01-01", "2026-01-02"))
