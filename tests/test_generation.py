"""A reload is a load with a key of its own, asked for by name (rule: one-key-loads-once)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError
from airflow_kafka_eos.generation import Generation, check_not_reserved, choose, load_of
from airflow_kafka_eos.load import LoadIdentity, LoadState

FIRST = LoadIdentity("n", "orders", "2026-01-01")
UNFINISHED = {LoadState.IN_DOUBT, LoadState.GIVEN_UP}
#: all but the newest generation are committed: only behind a commit one is opened
histories = st.tuples(st.integers(0, 4), st.sampled_from(sorted(LoadState)), st.sampled_from(["me", "you"])).map(
    lambda h: [Generation(n, LoadState.COMMITTED, frozenset({h[2]})) for n in range(1, h[0] + 1)]
    + [Generation(h[0] + 1, h[1], frozenset({"you"}))]
)


def pick(found: list[Generation], *, whole: bool = True, owner: str = "me") -> int:
    return choose(FIRST, found, owner=owner, whole=whole)


def test_the_first_generation_has_the_authors_own_key_and_each_other_one_of_its_own() -> None:
    assert load_of(FIRST, 1) == FIRST
    assert load_of(FIRST, 3) == LoadIdentity("n", "orders", "2026-01-01~reload-3")
    assert pick([]) == 1


@given(histories)
def test_only_behind_a_commit_a_new_generation_is_opened(found: list[Generation]) -> None:
    newest = found[-1]
    if newest.state in UNFINISHED:  # all of it is another group's
        with pytest.raises(InDoubtError) as refused:
            pick(found)
        # what is given up is not recovered any more
        assert ("loads recover" in refused.value.remedy) == (newest.state is LoadState.IN_DOUBT)
        assert "under another load_key" in refused.value.remedy
    else:
        assert pick(found) == newest.number + (newest.state is LoadState.COMMITTED)


@given(histories.filter(lambda found: found[-1].state is LoadState.COMMITTED))
def test_a_begin_that_is_tried_again_makes_no_second_copy(found: list[Generation]) -> None:
    first_try = pick(found)
    opened = [*found, Generation(first_try, LoadState.PREPARING, frozenset({"me"}))]
    assert pick(opened) == first_try


@given(histories.filter(lambda found: found[-1].state in UNFINISHED))
def test_what_is_in_doubt_is_gone_on_with_by_its_own_group_and_what_is_given_up_by_nobody(
    found: list[Generation],
) -> None:
    """"Bring back the source and clear prepare" brings begin along; it opens nothing."""
    newest = found[-1]
    if newest.state is LoadState.IN_DOUBT:
        assert pick(found, owner="you") == newest.number
    else:
        with pytest.raises(InDoubtError, match="newest generation of the load is GIVEN_UP"):
            pick(found, owner="you")


@given(histories)
def test_a_part_that_was_cleared_never_opens_a_generation(found: list[Generation]) -> None:
    own = [g.number for g in found if "me" in g.owners]
    assert pick(found, whole=False) == (own[-1] if own else found[-1].number)


@pytest.mark.parametrize("key", ["day~reload-2", "~reload-1", "a~reload-2~reload-3"])
def test_a_key_that_looks_like_a_reload_is_refused(key: str) -> None:
    """Else it would silently be the second generation of another load."""
    with pytest.raises(ConfigurationError, match="ends like the key of a reload"):
        check_not_reserved(LoadIdentity("n", "orders", key))


@given(st.text(min_size=1).filter(lambda t: "\x00" not in t), st.integers(2, 10**6))
def test_no_authors_key_is_a_generation_of_another(key: str, number: int) -> None:
    try:
        first = LoadIdentity("n", "orders", key)
    except ConfigurationError:
        return
    with pytest.raises(ConfigurationError):
        check_not_reserved(load_of(first, number))


@pytest.mark.parametrize("key", ["day", "day~reload-", "day~reload-2 ", "~reload-2/orders"])
def test_other_keys_are_not(key: str) -> None:
    check_not_reserved(LoadIdentity("n", "orders", key))
