"""``cursors``: what is shown, and a person who sets one by what he saw."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from tests.cli.conftest import Command
from tests.cli.test_docs import CODE
from tests.ledger.test_ledger_cursors import A, B, commit, cursor, load, put, take

NAME = A.name
OF = ("--namespace", A.namespace)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", url)
    opened = Ledger.open(url, upgrade=True)
    commit(opened, A, 10)
    return opened


def test_what_show_prints_sets_the_cursor(own: Ledger, command: Command) -> None:
    take(own, B)
    shown = command("cursors", "show", NAME, *OF)
    assert (shown.code, f"held by          {B.key}" in shown.out) == (0, True)
    printed = re.search(r"to set it: airflow-kafka-eos (.*)", shown.out)
    assert printed is not None
    words = shlex.split(printed[1].replace("--to …", "--to 20").replace("--reason …", "--reason looked"))
    assert command(*words, "--yes").code == 0, "it has the namespace in it"
    set_ = cursor(own)
    assert (set_.position, set_.reason) == (20, "looked")
    assert (command(*words, "--yes").code, cursor(own)) == (0, set_), "said again, it is the same"
    again = command(*(word.replace("20", "21") for word in words), "--yes")
    assert (again.code, "it has moved since it was looked at" in again.err) == (2, True)
    assert cursor(own) == set_


def test_one_is_made_where_there_is_none(own: Ledger, command: Command) -> None:
    """Behind `ledger new-id`, or in the ledger of a new deployment."""
    given = ("cursors", "set", "other", *OF, "--reason", "looked", "--yes")
    for more in (("--new", "--expect", "1", "--to", "2"), ("--to", "2"), ("--moves", "1", "--to", "2")):
        found = command(*given, *more)
        assert (found.code, "--new" in found.err) == (2, True)
    assert command(*given, "--new", "--to", "2").code == 0
    assert command(*given, "--new", "--to", "3").code == 2
    assert command(*given[:2], "another", *given[3:], "--new", "--to", "null").code == 0
    assert {row.load_name: row.position for row in own.cursors()} == {NAME: 10, "another": None, "other": 2}


def test_a_cursor_in_doubt_is_shown_by_the_exit_code(own: Ledger, command: Command) -> None:
    own.new_id(decided_by="ann")
    for words in (("cursors", "list"), ("cursors", "show", NAME, *OF)):
        found = command(*words)
        assert (found.code, "restored from a backup" in found.out or "in doubt" in found.out) == (1, True)


def test_what_is_no_position_is_refused(own: Ledger, command: Command) -> None:
    seen = cursor(own)
    moves = ("--moves", str(seen.moves))
    given = ("cursors", "set", NAME, *OF, "--expect", "10", *moves, "--reason", "x", "--yes", "--to")
    for to in ("", "None", "{{ x }}", '"20"', "1.5", "null", "2026-01-01"):
        assert command(*given, to).code == 2, to
    assert cursor(own) == seen
    assert command(*given[:-2], "--to", "11").code == 2, "nobody can be asked"
    assert command("cursors", "set", "load_order", *OF, *given[5:], "11").err.count("Did you mean load_orders") == 1


def test_one_in_doubt_at_null_may_stay_there(own: Ledger, command: Command) -> None:
    """A restored backup of behind a first try that had failed."""
    assert command("cursors", "set", "first", *OF, "--new", "--to", "null", "--reason", "x", "--yes").code == 0
    own.new_id(decided_by="ann")
    row = own.cursor(A.namespace, "first")
    assert row is not None and row.doubt
    words = ("--expect", "null", "--moves", str(row.moves), "--to", "null", "--reason", "nothing is loaded", "--yes")
    assert command("cursors", "set", "first", *OF, *words).code == 0
    after = own.cursor(A.namespace, "first")
    assert after is not None and (after.position, after.doubt) == (None, None)


def test_the_fields_are_on_the_page(own: Ledger, command: Command) -> None:
    (row,) = json.loads(command("cursors", "list", "--output", "json").out)
    shown = json.loads(command("loads", "show", NAME, A.key, *OF, "--output", "json").out)
    commit(own, load("n"), None, named=(1, 2))
    put(own, 0)
    set_ = json.loads(command("cursors", "show", NAME, *OF, "--output", "json").out)
    assert {*row, *shown["ranges"][0], "ranges", *set_, *set_["named_ahead"][0]} <= CODE
    assert [(r["since"], r["until"], r["named"]) for r in shown["ranges"]] == [("0", "10", False)]
    assert json.loads(row["position"]) == 10


def test_what_is_named_ahead_is_told_before_it_is_set(own: Ledger, command: Command) -> None:
    for n in range(10):
        commit(own, load(f"n{n}"), None, named=(n, n + 1))
    put(own, 0)
    shown = command("cursors", "show", NAME, *OF)
    assert "from 9 to 10, load n9, COMMITTED: loads that come to it are refused" in shown.out
    seen = cursor(own)
    given = ("cursors", "set", NAME, *OF, "--expect", "0", "--moves", str(seen.moves), "--reason", "looked", "--to")
    asked = command(*given, "5")
    assert (asked.code, "There is no terminal to ask at" in asked.err, cursor(own)) == (2, True, seen)
    told = asked.err.partition("Set the cursor")[0]
    assert "from 5 to 6, load n5, COMMITTED: loads that come to it are refused" in told and "from 4 to 5" not in told
    over = json.loads(command(*given, "5", "--over-named", "--yes", "--output", "json").out)
    assert [(one["since"], one["read_over"]) for one in over["named_ahead"]] == [(f"{n}", True) for n in range(5, 10)]
    assert "from 9 to 10, load n9, COMMITTED: loads read over it" in command("cursors", "show", NAME, *OF).out
    assert commit(own, B, 20).since == 5


def test_a_long_list_of_what_is_named_ahead_is_cut_off(own: Ledger, command: Command) -> None:
    commit(own, B, 12)
    for n in range(12):
        commit(own, load(f"n{n}"), None, named=(n, n + 1))
    put(own, 0)
    shown = command("cursors", "show", NAME, *OF).out
    assert (shown.count("load n"), "and 2 more" in shown) == (10, True)
    assert len(json.loads(command("cursors", "show", NAME, *OF, "--output", "json").out)["named_ahead"]) == 12
