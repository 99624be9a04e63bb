"""The conductor runs a load's tasks as Airflow does: retries, teardown, clearing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import conducting
from tests.faults.conducting import Conductor
from tests.faults.generating import generate
from tests.faults.plan import Ended, Order, Plan
from tests.faults.scenario import LoadPlan, Wish

WELL, FAILED, FINAL, KILLED = Ended(), Ended(error="no"), Ended(error="never", final=True), Ended(killed_by=9)
ALL = ["begin", "prepare", "decide", "commit", "cleanup", "loaded"]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, list[str]]]:
    """``play(answers, fate, retries)``: a load whose processes end as ``answers`` say, by role, in their order."""
    monkeypatch.setattr(conducting, "RETRY_DELAY_S", 0)

    def run(answers: dict[str, Sequence[Ended]], fate: Wish = Wish.LOAD, retries: int = 1) -> tuple[bool, list[str]]:
        load = LoadPlan(10, 10, 1, fate)
        scenario = replace(generate(1), loads=(load,), retries=retries, faults=())
        plan = Plan(scenario.to_json(), str(tmp_path), "", "", "n", (("t",),))
        left = {role: list(some) for role, some in answers.items()}
        started: list[str] = []

        def start(order: Order) -> Ended:
            started.append(order.role)
            return left[order.role].pop(0) if left.get(order.role) else WELL

        done = Conductor(plan, 0, "run", start).play()
        # cleanup and loaded run side by side
        return done, [*started[:-2], *sorted(started[-2:])] if set(started[-2:]) == set(ALL[-2:]) else started

    return run


Play = Callable[..., tuple[bool, list[str]]]


def test_a_load_that_nothing_happens_to(play: Play) -> None:
    assert play({}) == (True, ALL)


def test_a_task_that_fails_or_dies_is_retried(play: Play) -> None:
    assert play({"decide": [FAILED]}) == (True, ["begin", "prepare", "decide", "decide", "commit", "cleanup", "loaded"])
    assert play({"begin": [KILLED]}) == (True, ["begin", *ALL])


def test_the_teardown_runs_whatever_fails_and_the_run_is_cleared(play: Play) -> None:
    done, started = play({"prepare": [FAILED, FAILED]})
    assert done and started == ["begin", "prepare", "prepare", "cleanup", *ALL]


def test_a_final_error_is_not_retried(play: Play) -> None:
    assert play({"decide": [FINAL]}) == (True, ["begin", "prepare", "decide", "cleanup", *ALL])


def test_without_its_setup_there_is_no_teardown(play: Play) -> None:
    assert play({"begin": [FINAL]}) == (True, ["begin", *ALL])


def test_a_failed_teardown_fails_the_run(play: Play) -> None:
    done, started = play({"cleanup": [FINAL]})
    assert done and started.count("begin") == 2


def test_a_load_that_nobody_wants_is_not_cleared_for_ever(play: Play) -> None:
    assert play({"decide": [FINAL]}, Wish.ABANDON) == (False, ["begin", "prepare", "decide", "cleanup"])
    done, started = play({"decide": [FINAL] * 20}, Wish.REFUSE)
    assert not done and started.count("begin") == 2
