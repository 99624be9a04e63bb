"""Load identity and its state machine."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given

from airflow_kafka_eos.errors import InvalidNameError, UndecidableError
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict, check_move
from tests.values import loads

LOAD = LoadIdentity("airflow", "orders", "2013-01-01")
S = LoadState

#: docs/protocol.md's picture, line by line
PICTURE = {
    (S.PREPARING, S.PREPARED),
    (S.PREPARED, S.COMMITTING),
    (S.COMMITTING, S.COMMITTED),
    (S.PREPARING, S.ABORTING),
    (S.PREPARED, S.ABORTING),
    (S.ABORTING, S.ABORTED),
    (S.COMMITTING, S.REPAIRING),
    (S.REPAIRING, S.COMMITTED),
    (S.REPAIRING, S.IN_DOUBT),
}
#: opening an attempt aborts the undecided ones in the same ledger transaction
REOPENED = {(s, S.PREPARING) for s in (S.PREPARING, S.PREPARED, S.ABORTING, S.ABORTED)}
#: mixed evidence shows up while committing; a person mends it and lets recovery look again
MENDED = {(S.COMMITTING, S.IN_DOUBT), (S.IN_DOUBT, S.COMMITTED), (S.IN_DOUBT, S.REPAIRING)}
#: a person leaves an unfinished decided load as it is
GIVEN_UP = {(s, S.GIVEN_UP) for s in (S.COMMITTING, S.REPAIRING, S.IN_DOUBT)}


def test_the_table_is_the_picture_and_no_more() -> None:
    assert {(old, new) for old in LoadState for new in old.moves} == PICTURE | REOPENED | MENDED | GIVEN_UP


@pytest.mark.parametrize(("old", "new"), list(itertools.product(LoadState, LoadState)))
def test_a_move_is_allowed_or_refused_by_name(old: LoadState, new: LoadState) -> None:
    if (old, new) in PICTURE | REOPENED | MENDED | GIVEN_UP:
        check_move(LOAD, old, new)
        return
    with pytest.raises(UndecidableError, match=f"{old.value} cannot become {new.value}") as refused:
        check_move(LOAD, old, new)
    assert refused.value.load == str(LOAD)
    assert refused.value.remedy


def _reachable(state: LoadState) -> set[LoadState]:
    seen: set[LoadState] = set()
    todo = [state]
    while todo:
        for after in todo.pop().moves - seen:
            seen.add(after)
            todo.append(after)
    return seen


def test_committed_and_given_up_are_final() -> None:
    assert _reachable(S.COMMITTED) == _reachable(S.GIVEN_UP) == set()


def test_a_commit_decision_only_rolls_forward() -> None:
    # no way leads from a commit decision back to a new attempt or an abort (rule: one-key-loads-once)
    decided = {state for state in LoadState if state.is_decided}
    assert {S.COMMITTING, S.COMMITTED, S.REPAIRING, S.IN_DOUBT, S.GIVEN_UP} == decided
    for state in decided:
        assert _reachable(state) <= decided, state


def test_the_decision_is_the_only_door_to_a_commit() -> None:
    doors = {
        (old, new)
        for old in LoadState
        for new in old.moves
        if new.is_decided and not old.is_decided
    }
    assert doors == {(S.PREPARED, S.COMMITTING)}


@pytest.mark.parametrize("state", [s for s in LoadState if s not in (S.COMMITTED, S.GIVEN_UP)])
def test_every_load_can_still_arrive(state: LoadState) -> None:
    assert S.COMMITTED in _reachable(state)


def test_the_words_stored_in_the_ledger_are_pinned() -> None:
    assert [v.value for v in Verdict] == ["commit", "abort"]
    assert all(state.value == state.name for state in LoadState)


@given(loads)
def test_an_identity_is_its_three_names(load: LoadIdentity) -> None:
    assert load == LoadIdentity(load.namespace, load.name, load.key)
    assert str(load) == f"{load.namespace}/{load.name}/{load.key}"


@pytest.mark.parametrize("field", ["namespace", "name", "key"])
@pytest.mark.parametrize("value", ["", None, 7, b"orders", "a\x00b", "\x00", "a\ud800b"])
def test_what_a_database_or_an_id_cannot_hold_is_refused(field: str, value: object) -> None:
    parts: dict[str, object] = {"namespace": "airflow", "name": "orders", "key": "k", field: value}
    with pytest.raises(InvalidNameError, match=f"the load's {field} ") as refused:
        LoadIdentity(**parts)  # type: ignore[arg-type]
    assert refused.value.remedy


#: as a load goes
ORDER = ["PREPARING", "PREPARED", "ABORTING", "ABORTED", "COMMITTING", "COMMITTED", "REPAIRING", "IN_DOUBT", "GIVEN_UP"]


def test_the_page_of_concepts_has_every_state() -> None:
    page = (Path(__file__).parent.parent / "docs" / "concepts.md").read_text(encoding="utf-8")
    table = page.partition("| state | readers see |")[2].partition("\n\n")[0]
    assert re.findall(r"(?m)^\| `([A-Z_]+)` \|", table) == ORDER
    assert set(ORDER) == {state.value for state in LoadState}
