"""What a timeline says of loads and processes, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.accounts import deciding_at, gave_up_s, processes, told_at, unexpected, was_to_clean_all

Events = list[dict[str, Any]]


def of(pid: int, role: str, *lines: tuple[float, str], load: int = 0, **details: Any) -> Events:
    """One process's events: (seconds, event); the details are those of all but the first."""
    (t, _), *rest = lines
    begins = {"t": t, "event": "begins", "role": role, "load": load, "limit_s": 100.0}
    more = [{"t": t, "event": event, "role": role, "load": load, **details} for t, event in rest]
    return [{"pid": pid, "party": f"{role} of dag/run-{load}", **event} for event in (begins, *more)]


def in_order(*some: Events) -> Events:
    return sorted((event for events in some for event in events), key=lambda e: e["t"])


def test_the_first_attempt_to_record_a_decision_counts() -> None:
    happened = in_order(
        of(1, "decide", (1.0, "begins"), (2.0, "records its decision"), load_key="a", attempt=1),
        of(2, "decide", (3.0, "begins"), (4.0, "records its decision"), load_key="a", attempt=2),
        of(3, "decide", (5.0, "begins"), (6.0, "records its decision"), load_key="a", attempt=2),
    )
    assert deciding_at(happened, "a", 2) == 4.0
    assert deciding_at(happened, "a", 3) is deciding_at(happened, "b", 2) is None


def test_who_was_told_first() -> None:
    happened = in_order(
        of(1, "loaded", (1.0, "begins"), (2.0, "fails")),
        of(2, "loaded", (1.0, "begins"), (2.5, "is done"), load=1),
        of(3, "loaded", (3.0, "begins"), (4.0, "is done")),
        of(4, "commit", (1.0, "begins"), (1.5, "is done")),
    )
    assert told_at(happened, 0) == 4.0 and told_at(happened, 1) == 2.5 and told_at(happened, 2) is None


def test_who_gave_up() -> None:
    happened = [{"t": 1.0, "pid": 1, "party": "airflow", "event": "gave up by the clock", "load": 1, "after_s": 240}]
    assert gave_up_s(happened, 1) == 240.0 and gave_up_s(happened, 0) == 0.0


def test_a_pid_may_come_again() -> None:
    happened = in_order(
        of(1, "begin", (1.0, "begins"), (2.0, "is done")), of(1, "commit", (3.0, "begins"), (4.0, "fails"))
    )
    assert [(p.role, p.ended, p.is_well) for p in processes(happened)] == [("begin", 2.0, True), ("commit", 4.0, False)]


@pytest.mark.parametrize(
    ("event", "details", "found"),
    [
        ("is done", {}, []),
        ("fails", {}, []),
        ("FAULT 0", {"kind": "sigkill"}, []),
        ("FAULT 0", {"kind": "sigterm"}, []),
        ("FAULT 0", {"kind": "pause"}, ["task of dag/run-0: ended without a word"]),
        ("submits", {}, ["task of dag/run-0: ended without a word"]),
    ],
)
def test_a_death_without_a_word(event: str, details: dict[str, Any], found: list[str]) -> None:
    happened = in_order(
        of(1, "task", (1.0, "begins"), (2.0, event), **details), of(2, "loaded", (1.0, "begins"), (50.0, "is done"))
    )
    assert list(unexpected(happened)) == found
    # somebody whose time is over is killed
    assert list(unexpected([*happened, *of(3, "loaded", (102.0, "begins"), (103.0, "is done"))])) == []


def test_an_error_that_nobody_expects() -> None:
    happened = of(1, "task", (1.0, "begins"), (2.0, "UNEXPECTED"), (2.1, "fails"), kind="TypeError", error="no")
    assert list(unexpected(happened)) == ["task of dag/run-0: TypeError: no"]


TASK = of(1, "task", (1.0, "begins"), (5.0, "is done"))
CLEANUP = of(2, "cleanup", (6.0, "begins"), (6.1, "sweeps"), (8.0, "is done"), up_to=2)


def test_a_cleanup_behind_all_others() -> None:
    assert was_to_clean_all(in_order(TASK, CLEANUP), 0, 2)
    assert was_to_clean_all(in_order(TASK, CLEANUP, of(3, "task", (1.0, "begins"), (9.0, "is done"), load=1)), 0, 2)
    # looks on
    assert was_to_clean_all(in_order(TASK, CLEANUP, of(3, "loaded", (1.0, "begins"), (9.0, "is done"))), 0, 2)
    killed = of(1, "task", (1.0, "begins"), (5.0, "FAULT 0"), kind="sigkill")
    assert was_to_clean_all(in_order(killed, CLEANUP), 0, 2)


@pytest.mark.parametrize(
    "happened",
    [
        pytest.param(TASK, id="no cleanup"),
        pytest.param([*TASK, *CLEANUP[:-1]], id="it did not end"),
        pytest.param([*TASK, *CLEANUP[:-1], {**CLEANUP[-1], "event": "fails"}], id="it failed"),
        pytest.param([*TASK, CLEANUP[0], CLEANUP[-1] | {"up_to": None}], id="of no attempt"),
        pytest.param([*CLEANUP, *of(3, "task", (7.0, "begins"), (9.0, "is done"))], id="a zombie behind it"),
        pytest.param([*of(3, "driver", (5.0, "begins"), (6.5, "is done")), *CLEANUP], id="a writer beside it"),
        pytest.param([*of(3, "task", (1.0, "begins")), *CLEANUP], id="nobody knows when a writer ended"),
        pytest.param([*of(1, "task", (1.0, "begins"), (5.0, "is done")), *CLEANUP, *of(4, "begin", (9.0, "begins"))],
                     id="a later run"),
    ],
)
def test_a_cleanup_that_is_not_to_clean_all(happened: Events) -> None:
    assert not was_to_clean_all(in_order(happened), 0, 2)


def test_a_cleanup_of_an_earlier_attempt() -> None:
    assert not was_to_clean_all(in_order(TASK, CLEANUP), 0, 3)
