"""Ranges by name in the ledger, beside each other and beside the cursor, on each database.

Rule: range-is-pinned.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from typing import Any

import pytest

from airflow_kafka_eos.cli import parser
from airflow_kafka_eos.errors import ConfigurationError, NotFinishedError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.ledger.rows import RangeRow
from airflow_kafka_eos.load import LoadIdentity, name_in_command
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
    assert [one.load for one in ledger.named_ahead(A.namespace, A.name, 0)] == [B]


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
    put(ledger, 1000, over_named=True)
    assert commit(ledger, C, 2500).since == 1000
    assert commit(ledger, load("d"), 3500).since == 2500, "said once"


def test_who_sets_a_cursor_has_not_said_that_its_loads_read_over_what_was_named(ledger: Ledger) -> None:
    """Nobody has told him of it: the load that was given up had nothing to do with what lies ahead."""
    commit(ledger, A, None, named=(2000, 3000))
    commit(ledger, B, 1000)
    decide(ledger, C, take(ledger, C, 1500).attempt)
    ledger.record_given_up(C, by="ann", reason="never mind")
    close(ledger, C)
    put(ledger, 1500)
    own = load("d")
    take(ledger, own)
    with pytest.raises(ConfigurationError, match="has named the range from 2000 to 3000"):
        ledger.pin_range(own, 1, 1500, 3500)
    put(ledger, 1500, over_named=True)
    commit(ledger, load("e"), None, named=(0, 100))
    put(ledger, 0)
    again = take(ledger, own).attempt
    with pytest.raises(ConfigurationError, match=r"load team/load_orders/e, .* from 0 to 100, a part"):
        ledger.pin_range(own, again, 0, 3500)  # named behind that
    put(ledger, 100)
    assert commit(ledger, own, 3500).since == 100, "what was said stands"


def test_all_that_is_in_the_way_is_told_and_the_command_printed_leaves_it_behind(ledger: Ledger) -> None:
    for n, named in enumerate([(0, 1000), (1000, 2000), (5000, 6000), (8000, 9000)]):
        commit(ledger, load(f"n{n}"), None, named=named)
    error = refused(ledger, A, 0, 6500)
    assert [f"team/load_orders/n{n}, which is COMMITTED" in str(error) for n in range(4)] == [True, True, True, False]
    assert "What lies before and between nobody has loaded then: from 2000 to 5000. Once" in error.remedy
    follow(ledger, error, to=6000)
    assert commit(ledger, B, None, named=(2000, 5000)).is_named
    assert commit(ledger, A, 7000).since == 6000
    error = refused(ledger, C, 7000, 9500)
    follow(ledger, error, to=9000)
    commit(ledger, C, 9500)


def test_no_gap_is_told_where_there_is_none(ledger: Ledger) -> None:
    commit(ledger, A, None, named=(1000, 2000))
    commit(ledger, B, None, named=(0, 1000))
    error = refused(ledger, C, 0, 2500)
    assert "nobody has loaded" not in error.remedy
    assert "--moves 0 --to 0 --reason 'over what was named' --over-named`" in error.remedy
    follow(ledger, error, to=2000)
    assert commit(ledger, C, 2500).since == 2000


def test_a_long_list_of_what_is_in_the_way_is_cut_off(ledger: Ledger) -> None:
    for n in range(7):
        commit(ledger, load(f"n{n}"), None, named=(10 * n + 1, 10 * n + 9))
    error = refused(ledger, A, 0, 100)
    assert (str(error).count("has named the range"), str(error).count("; and 2 more")) == (5, 2)


def test_of_offsets_the_end_is_the_greatest_of_each_partition(ledger: Ledger) -> None:
    commit(ledger, A, None, named=(offsets(100, 50), offsets(200, 60)), first_since=None)
    commit(ledger, B, None, named=(offsets(200, 60), offsets(250, 60)), first_since=None)
    commit(ledger, C, offsets(90, 50), first_since=offsets(0, 0))
    own = load("d")
    error = refused(ledger, own, offsets(90, 50), offsets(300, 300))
    assert "nobody has loaded then: from 90 to 100 of offsets of orders of 0. Once" in error.remedy
    follow(ledger, error, to=offsets(250, 60))
    assert commit(ledger, own, offsets(300, 300)).since == offsets(250, 60)


def test_a_command_that_would_be_refused_is_not_printed(ledger: Ledger) -> None:
    alone = [{"offsets": {"orders": {"1": at}}} for at in (5, 9)]  # the cursor would leave out partition 0
    commit(ledger, A, None, named=(alone[0], alone[1]), first_since=None)
    assert "nobody can tell here" in refused(ledger, B, None, offsets(10, 10)).remedy


def test_a_position_that_nobody_can_paste_is_left_to_the_person(ledger: Ledger) -> None:
    wide = [offsets(*[at] * 1000) for at in (5, 9)]
    commit(ledger, B, wide[1], first_since=wide[0])
    commit(ledger, C, None, named=(wide[0], wide[1]))
    put(ledger, wide[0])
    error = refused(ledger, load("d"), wide[0], offsets(*[20] * 1000))
    assert "--expect … --moves" in error.remedy and len(str(error)) < 3000


def test_where_nobody_can_tell_the_end_a_person_says_it(ledger: Ledger) -> None:
    commit(ledger, A, None, named=(1000, 2000), first_since=None)
    error = refused(ledger, B, "2026-01-01", "2026-01-02")
    assert "nobody can tell which is first" in str(error)
    assert f"cursors set {name_in_command(B)} --expect '\"2026-01-01\"' --moves 1 --to … " in error.remedy
    assert [one.load for one in ledger.named_ahead(A.namespace, A.name, "2026-01-01")] == [A]
    put(ledger, "2026-01-01", over_named=True)
    assert commit(ledger, B, "2026-01-02").since == "2026-01-01"


def test_what_is_not_through_is_nothing_to_go_on_behind(ledger: Ledger) -> None:
    take(ledger, A, named=(2000, 3000))
    error = refused(ledger, B, 0, 3500)
    assert f"{A}, which is PREPARING" in str(error) and "cursors set" not in error.remedy
    assert f"`airflow-kafka-eos cleanup {A.in_command}` aborts it" in error.remedy
    number = ledger.load(A).newest_attempt  # type: ignore[union-attr]
    decide(ledger, A, number)
    error = refused(ledger, B, 0, 3500)
    assert f"`airflow-kafka-eos loads recover {A.in_command}` does" in error.remedy
    ledger.record_given_up(A, by="ann", reason="never mind")
    error = refused(ledger, B, 0, 3500)
    assert f"`airflow-kafka-eos cleanup {A.in_command}` until it finds the load clean" in error.remedy
    close(ledger, A, number)
    error = refused(ledger, B, 0, 3500)
    assert f"Look what is visible of {A}. Go on behind" in error.remedy


def test_what_was_aborted_is_in_nobodys_way(ledger: Ledger) -> None:
    take(ledger, A, named=(2000, 3000))
    abort(ledger, A, 1)
    assert commit(ledger, B, 3500).until == 3500


def test_a_reload_of_what_was_named_is_a_range_by_name(ledger: Ledger) -> None:
    """Though an attempt of the first key, which came to nothing, had a range of the cursor."""
    for own in (A, B):
        take(ledger, own, 5000)
        abort(ledger, own, 1)
    commit(ledger, A, None, named=(2000, 3000))
    commit(ledger, load("a~reload-2"), None, named=(500, 1500))
    with pytest.raises(ConfigurationError, match="a~reload-2, which is COMMITTED, has named the range from 500 to"):
        commit(ledger, C, 1800)


def test_so_is_a_reload_of_an_own_range_that_names_another(ledger: Ledger) -> None:
    commit(ledger, A, 100)
    commit(ledger, B, 1000)
    commit(ledger, load("a~reload-2"), None, named=(500, 600))
    put(ledger, 400)
    with pytest.raises(ConfigurationError, match="from 500 to 600, a part"):
        commit(ledger, C, 1000)


def refused(ledger: Ledger, of: LoadIdentity, since: Any, until: Any) -> ConfigurationError:
    """Why a load's own range is."""
    number = take(ledger, of, first_since=since).attempt
    with pytest.raises(ConfigurationError) as caught:
        ledger.pin_range(of, number, since, until)
    return caught.value


def follow(ledger: Ledger, error: ConfigurationError, *, to: Any) -> None:
    """The command that an error prints, to the letter."""
    (words,) = re.findall(r"Go on behind what was named: `airflow-kafka-eos (cursors set .*?)`", str(error.remedy))
    given = parser().parse_args(shlex.split(words))
    assert (given.namespace, given.name, json.loads(given.to)) == (A.namespace, A.name, to)
    seen = cursor(ledger)
    assert (json.loads(given.expect), given.moves) == (seen.position, seen.moves)
    put(ledger, to, seen)


def offsets(*of: int) -> dict[str, Any]:
    return {"offsets": {"orders": {str(n): at for n, at in enumerate(of)}}, "topic_ids": {"orders": "an id"}}


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
