"""Positions of a cursor: what has an order, what has none, and what a template may leave behind."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from airflow_kafka_eos import position
from airflow_kafka_eos.cursor import Cursor
from airflow_kafka_eos.errors import ConfigurationError

DAY, NOON = "2026-01-01", "2026-01-01T12:00:00+00:00"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (7, 7),
        (Decimal("7"), 7),
        (date(2026, 1, 1), DAY),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), NOON),
        ("2026-01-01 12:00:00.123456", "2026-01-01 12:00:00.123456"),
        ({"orders": {"0": 3}}, {"orders": {"0": 3}}),
        ({"offsets": {"orders": {"0": 3}}, "topic_ids": {"orders": "abc"}}, ) * 2,
    ],
)
def test_what_is_a_position(value: Any, kept: Any) -> None:
    assert position.checked(value, "until") == kept


@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, float("nan"), "9", "10", "20260101", "abc", "2026-13-01", "2026-01-01T00:00:00.1234567", {}, [1],
     {"a": None}, {1: 2}, {"a": 1.0}, b"7", "\ud800", {"a": {"b": {"c": {"d": {"e": 1}}}}}, Decimal("1.5")],
)  # fmt: skip
def test_what_is_none(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="until"):
        position.checked(value, "until")


RANGES = [
    ((0, 5), (5, 9), False),
    ((0, 5), (4, 9), True),
    ((None, 5), (0, 1), True),
    (("2026-01-01", "2026-01-02"), ("2026-01-02", "2026-01-03"), False),
    ((NOON, "2026-01-01T15:00:00+01:00"), ("2026-01-01T13:59:00+00:00", "2026-01-01T14:00:00+00:00"), True),
    (({"0": 1, "1": 5}, {"0": 2, "1": 5}), ({"0": 2, "1": 0}, {"0": 3, "1": 9}), False),
    (({"0": 1, "1": 5}, {"0": 2, "1": 6}), ({"0": 2, "1": 0}, {"0": 3, "1": 9}), True),
    (({"a": 1}, {"a": 2}), ({"b": 1}, {"b": 2}), False),
    (({"version": 1, "id": "x"}, {"version": 2, "id": "x"}), ({"version": 0, "id": "x"}, {"version": 1, "id": "x"}),
     False),
    (({"version": 1, "id": "x"}, {"version": 3, "id": "x"}), ({"version": 2, "id": "y"}, {"version": 9, "id": "y"}),
     True),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "overlap"), RANGES)
def test_ranges_that_overlap(one: Any, other: Any, overlap: bool) -> None:
    assert position.overlaps(one, other, "it") == position.overlaps(other, one, "it") == overlap


def test_of_ranges_of_two_kinds_nobody_can_tell() -> None:
    with pytest.raises(ConfigurationError, match="first"):
        position.overlaps((0, 5), ("2026-01-01", "2026-01-02"), "it")


def of(*offsets: int, id_: str = "x") -> Any:
    return {"offsets": {str(n): at for n, at in enumerate(offsets)}, "id": id_}


@pytest.mark.parametrize(
    ("at", "ranges", "end", "gaps"),
    [
        (0, [(5, 6), (1, 2), (0, 1)], 6, ["from 2 to 5"]),
        (3, [(0, 2), (1, 9)], 9, []),
        (None, [(None, 5)], 5, []),
        (None, [(2, 5)], 5, ["from where the source begins to 2"]),
        ("2026-01-01", [("2026-01-03", "2026-01-04")], "2026-01-04", ['from "2026-01-01" to "2026-01-03"']),
        (of(5, 5), [(of(9, 5), of(10, 6)), (of(2, 6), of(2, 9))], of(10, 9), ["from 5 to 9 of offsets of 0"]),
        (of(5, 5), [(of(5), of(9))], of(9, 5), []),  # one that they do not name stays where it is
        (of(5, 5), [(of(5, 9), of(9, 9))], of(9, 5), []),  # nor has an empty part of a range anything
    ],
)
def test_how_far_ranges_reach(at: Any, ranges: Any, end: Any, gaps: list[str]) -> None:
    assert position.reached(at, ranges) == (end, gaps)


@pytest.mark.parametrize(
    ("at", "ranges"),
    [
        (0, [("2026-01-01", "2026-01-02")]),
        (of(5), [(1, 2)]),
        (of(5), [(of(5), of(6, id_="y"))]),
        (None, [(1, 2), (of(1), of(2))]),
    ],
)
def test_how_far_ranges_of_two_kinds_reach_nobody_can_tell(at: Any, ranges: Any) -> None:
    with pytest.raises(ConfigurationError):
        position.reached(at, ranges)


def test_texts_of_digits_have_no_order() -> None:
    """ "9" is behind "10" as a text: the range from 9 to 10 would be refused, that from 10 to 9 would be read."""
    assert position.read("9", "since") == 9  # a template's number
    with pytest.raises(ConfigurationError, match="order"):
        position.read('"9"', "since")


LEFT = ["", " ", "None", "null", None, "{{ params.since }}", "{% if x %}", "NaN", "[1]", "1.5"]


@pytest.mark.parametrize("text", LEFT)
def test_what_a_template_leaves_behind_is_refused(text: Any) -> None:
    with pytest.raises(ConfigurationError):
        position.read(text, "since")


@pytest.mark.parametrize(("text", "value"), [("7", 7), (NOON, NOON), ('{"a": 1}', {"a": 1}), (7, 7)])
def test_what_a_person_writes(text: Any, value: Any) -> None:
    assert position.read(text, "since") == value


@pytest.mark.parametrize(
    ("since", "until", "behind"),
    [
        (None, 0, True),
        (9, 10, True),
        (9, 9, False),
        (NOON, "2026-01-01T14:00:00+01:00", True),
        (NOON, "2026-01-01T13:00:00+01:00", False),
        (DAY, "2026-01-02", True),
        ({"a": {"0": 1}}, {"a": {"0": 1, "1": 0}}, True),
        ({"a": {"0": 1, "1": 5}}, {"a": {"0": 2, "1": 5}}, True),
        ({"a": {"0": 1}, "id": "x"}, {"a": {"0": 1}, "id": "x"}, False),
    ],
)
def test_behind(since: Any, until: Any, behind: bool) -> None:
    assert position.is_behind(until, since, "the range") is behind


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (10, 9),
        (NOON, "2026-01-01T12:30:00+01:00"),
        (1, DAY),
        (DAY, NOON),
        (NOON, "2026-01-01T13:00:00"),
        ({"a": {"0": 1, "1": 5}}, {"a": {"0": 9, "1": 4}}),
        ({"a": {"0": 1, "1": 5}}, {"a": {"0": 9}}),
        ({"a": {"0": 1}, "id": "x"}, {"a": {"0": 2}, "id": "y"}),
    ],
)
def test_what_goes_back_or_is_of_another_kind_is_refused(since: Any, until: Any) -> None:
    with pytest.raises(ConfigurationError):
        position.is_behind(until, since, "the range")


def test_one_moment_in_two_time_zones_is_one_position() -> None:
    there = datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=1))).isoformat()
    assert position.is_same(NOON, there, "x") and not position.is_same(NOON, there.replace("13:", "14:"), "x")


def test_positions_of_two_kinds_are_not_the_same(one: Any = {"a": 1}) -> None:  # noqa: B006
    for other in (1, DAY):
        with pytest.raises(ConfigurationError, match="which is first"):
            position.is_same(one, other, "x")
    assert position.is_same(one, dict(one), "x") and not position.is_same(one, {"a": 2}, "x")
    assert position.is_same(None, None, "x") and not position.is_same(None, 1, "x")


def test_what_is_too_long_for_a_command_line_is_refused() -> None:
    many = {"offsets": {"orders": {str(n): 10**11 + n for n in range(2_000)}}}
    assert position.checked(many, "until") == many
    many["offsets"]["orders"] |= {str(n): 10**11 + n for n in range(2_000, 3_000)}
    with pytest.raises(ConfigurationError, match="45,000"):
        position.checked(many, "until")


@pytest.mark.parametrize(
    ("to", "missing"),
    [
        ({"offsets": {"a": {"2": 9}, "b": {"0": 1}}}, ["a-0", "a-10"]),
        ({"offsets": {"a": {"0": 0, "2": 9, "10": 3}}}, []),  # another topic may be left out
        ({"offsets": {"a": {"2": 9}}, "topic_ids": {"a": "new"}}, []),  # it was made anew, with fewer partitions
        ({"offsets": {"a": {"2": 9}}, "topic_ids": {"a": "old"}}, ["a-0", "a-10"]),
        (7, []),
    ],
)
def test_partitions_that_a_position_leaves_out(to: Any, missing: list[str]) -> None:
    old = {"offsets": {"a": {"0": 5, "2": 6, "10": 7}, "b": {"0": 1}}, "topic_ids": {"a": "old"}}
    assert position.left_out(to, old) == missing


@pytest.mark.parametrize(
    ("offsets", "missing"),
    [
        ({"a": {"1": 5}}, "a-0"),
        ({"b": {"0": 1}, "a": {"2": 1, "1": 0}}, "a-0"),
        ({"a": {"0": 1, f"{10**12}": 0}}, "a-1, a-2, a-3, a-4, a-5, …"),
        ({"a": {"1": 5, "0": 0}}, None),
        ({"a": {"x": 7}}, None),  # another source's
    ],
)
def test_a_first_position_names_every_partition_below(offsets: Any, missing: str | None) -> None:
    with nullcontext() if missing is None else pytest.raises(ConfigurationError, match=f"partitions {missing}: they"):
        Cursor(first_since={"offsets": offsets}).check(sql=False)


def test_a_since_may_only_be_completed() -> None:
    assert position.extends({"a": {"0": 1, "1": 0}}, {"a": {"0": 1}})
    assert position.extends(5, None)
    assert not position.extends({"a": {"0": 2}}, {"a": {"0": 1}})
    assert not position.extends(6, 5)
