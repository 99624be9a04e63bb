"""What the judge of a stream world must find, planted one by one; and how standing readers are measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.worlds.stream_judge import Batch, Beat, QueryFact, judge, standing, torn_s

ROWS = [f"{file}-{row}" for file in range(2) for row in range(3)]
GOOD = QueryFact("q", ROWS, ROWS, ROWS, [Batch(0, "COMMITTED", 3, 1), Batch(1, "COMMITTED", 3, 1)], 1)


def kinds(**change: Any) -> set[str]:
    return {violation.kind for violation in judge(replace(GOOD, **change))}


def test_nothing_is_wrong_with_a_query_as_it_must_be() -> None:
    assert list(judge(GOOD)) == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("lost", {"final": ROWS[1:]}),
        ("duplicate", {"final": [*ROWS, ROWS[0]]}),
        ("undecided_visible", {"final": [*ROWS, "9-9"]}),
        ("reader_differs", {"tailed": ROWS[1:]}),
        ("left_open", {"open": ["an id"]}),
        ("left_open", {"unfinished": ["an attempt"]}),
        ("unfinished", {"batches": [GOOD.batches[0], Batch(1, "COMMITTING", 3, 1)]}),
        ("reported_wrong", {"batches": [GOOD.batches[0], Batch(1, "COMMITTED", 3, 2)]}),
        ("reported_wrong", {"batches": [GOOD.batches[0], Batch(2, "COMMITTED", 3, 1)]}),
        ("reported_wrong", {"batches": [GOOD.batches[0], Batch(1, "COMMITTED", 4, 1)]}),
        ("reported_wrong", {"decided": 0}),
        ("reported_wrong", {"decided": None}),
    ],
)
def test_what_is_wrong_is_found(kind: str, change: dict[str, Any]) -> None:
    assert kind in kinds(**change)


def test_a_batch_that_its_ledger_has_forgotten_is_counted_by_what_a_person_has_found() -> None:
    known, lost = GOOD.batches
    for batches in ([known], [known, Batch(1, "ABORTED", 0, 0)]):
        assert kinds(batches=batches, forgotten={1: 3}) == set(), "an attempt of it may be known"
        assert kinds(batches=batches) != set()
    assert kinds(batches=[known], forgotten={1: 2}) == {"reported_wrong"}
    assert kinds(batches=[known], forgotten={2: 3}) == {"reported_wrong"}
    assert "reported_wrong" in kinds(batches=[known, lost], forgotten={1: 3}), "it is decided once more"


def test_readers_stand_still_beyond_what_was_down() -> None:
    beats = [Beat(0.0, 0.5), Beat(1.0, 21.0)]
    assert standing(beats, []) == (20.0, 20.0)
    assert standing(beats, [(2.0, 10.0), (8.0, 12.0), (15.0, 16.0)]) == (20.0, 9.0)
    assert standing(beats, [(0.0, 30.0)]) == (20.0, 0.0)


def test_a_file_is_visible_in_part_from_its_first_row_to_its_last() -> None:
    assert torn_s([(1.0, "0-0"), (1.5, "1-0"), (3.0, "0-1"), (1.5, "1-1"), (9.0, "0-1")], 2) == 2.0
