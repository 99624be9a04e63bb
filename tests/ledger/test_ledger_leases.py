"""Leases: a thing is one task's at a time, and no two who wait for each other (docs/adr/0022)."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta
from functools import partial

from airflow_kafka_eos.ledger import Ledger
from tests.ledger.ledger_support import sql
from tests.ledger.test_ledger_races import race

TTL = timedelta(minutes=10)


def take(ledger: Ledger, by: str, what: Collection[str], ttl: timedelta = TTL) -> str | None:
    return ledger.acquire_lease(what, by=by, ttl=ttl)


def over(url: str, by: str) -> None:
    """A lease's time has passed."""
    sql(url, "UPDATE kafka_eos_turns SET taken_at = '2000-01-01T00:00:00.000000+00:00' WHERE taken_by = :by", by=by)


def test_a_thing_is_one_tasks_at_a_time_until_its_lease_is_over(ledger: Ledger, url: str) -> None:
    assert take(ledger, "a", ["t"]) is None
    assert take(ledger, "b", ["t"]) == "a"
    assert take(ledger, "b", ["another"]) is None
    assert take(ledger, "b", ["t"], timedelta(microseconds=1)) is None, "its lease is over"
    assert take(ledger, "a", ["t"]) == "b"
    assert take(ledger, "c", []) is None


def test_whoever_asks_again_has_it_for_a_whole_lease_more(ledger: Ledger, url: str) -> None:
    take(ledger, "a", ["t"])
    over(url, "a")
    assert take(ledger, "a", ["t"]) is None
    assert take(ledger, "b", ["t"]) == "a"


def test_names_of_any_length_and_script_are_held_by_owners_of_any_length(ledger: Ledger, url: str) -> None:
    long = "ü%" * 2000
    assert take(ledger, long, [long]) is None
    assert take(ledger, long, [long]) is None, "it is the same one, though its name is cut"
    assert re.match("(ü%)+", take(ledger, "b", ["t", long]) or "")
    assert take(ledger, "b", [long + "."]) is None


def test_of_two_who_want_the_same_things_one_gets_all(ledger: Ledger, url: str) -> None:
    """Each held what the other wants, and both were left to their patience."""
    things = [f"t{n}" for n in range(8)]
    assert take(ledger, "old", things[3:5]) is None
    wanted = {"a": things, "b": things[::-1]}
    assert None not in [take(ledger, by, what) for by, what in wanted.items()]
    over(url, "old")
    for _ in range(2):
        answers = {by: take(ledger, by, what) for by, what in wanted.items()}
    assert answers in ({"a": None, "b": "a"}, {"a": "b", "b": None})


def test_of_many_who_ask_at_once_one_gets_it(ledger: Ledger, url: str) -> None:
    for seed in range(8):
        things = [f"{seed} {n}" for n in range(3)]
        answers = race(seed, *(partial(take, ledger, f"task {n}", things) for n in range(6)))
        (first,) = [n for n, other in enumerate(answers) if other is None]
        assert {*answers} == {None, f"task {first}"}
        over(url, f"task {first}")
        again = race(seed, *(partial(take, ledger, f"task {n}", things) for n in range(6)))
        assert again.count(None) == 1, "and one of those who find its lease over"
