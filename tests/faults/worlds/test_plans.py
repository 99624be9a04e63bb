"""Plans of worlds: the same for a seed, with everything in them, and readable again."""

from __future__ import annotations

import pytest

from tests.faults.worlds import cursor_plan, stream_plan
from tests.faults.worlds.stream_steps import ABORTING, EVERY, OF_A_TASK

SEEDS = range(400)


def test_a_seed_is_always_the_same_stream_and_can_be_read_again() -> None:
    for seed in (*SEEDS, stream_plan.BY_SPARK + 1):
        plan = stream_plan.generate(seed)
        assert plan == stream_plan.generate(seed)
        assert stream_plan.StreamPlan.from_json(plan.to_json()) == plan


def test_streams_have_everything_in_them() -> None:
    plans = [stream_plan.generate(seed) for seed in SEEDS]
    strikes = [strike for plan in plans for strike in plan.strikes]
    assert {strike.kind for strike in strikes} == set(stream_plan.Kind)
    assert {strike.step for strike in strikes} == {"", *EVERY}
    for kind in (stream_plan.Kind.DRIVER_KILL, stream_plan.Kind.BROKER_KILL, stream_plan.Kind.LEDGER_AWAY):
        assert {s.step for s in strikes if s.kind is kind} == {"", *EVERY}, f"{kind} at every step"
    assert {s.step for s in strikes if s.kind is stream_plan.Kind.WORKER_KILL} == {"", *OF_A_TASK}
    of_many = [strike for seed in range(2000) for strike in stream_plan.generate(seed).strikes]
    restored = {s.then for s in of_many if s.kind is stream_plan.Kind.LEDGER_RESTORED}
    assert restored == {"", *EVERY} - {ABORTING}, "where what a ledger loses was at"
    assert {s.then for s in of_many if s.kind is not stream_plan.Kind.LEDGER_RESTORED} == {""}
    assert {plan.ledger for plan in plans} == {"sqlite", "postgresql"}
    assert {plan.naming for plan in plans} == {"pooling", "incrementing"}
    spark = [stream_plan.generate(stream_plan.BY_SPARK + seed) for seed in range(100)]
    assert {plan.sinks for plan in spark} == {"format", "each", "both"}
    assert {plan.source for plan in spark} == {"files", "kafka"}
    assert not any(plan.source == "kafka" or plan.available_now for plan in plans), "what only Spark itself has"


def test_a_seed_is_always_the_same_cursor_and_can_be_read_again() -> None:
    plans = [cursor_plan.generate(seed) for seed in SEEDS]
    assert plans == [cursor_plan.CursorPlan.from_json(plan.to_json()) for plan in plans]
    turns = [turn for plan in plans for turn in plan.turns]
    assert {turn.person for turn in turns} == {"", "set", "back", "range by name", "clear", "cleanup", "maintenance"}
    assert {turn.outage for turn in turns} == {"", "broker", "ledger"}
    assert {run.struck for turn in turns for run in turn.runs} == {"", "kill", "pause"}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_shrunk_is_smaller_each_time_and_comes_to_an_end(seed: int) -> None:
    plan, cursor = stream_plan.generate(seed), cursor_plan.generate(seed)
    for _ in range(100):
        plan = next(stream_plan.smaller(plan), plan)
        cursor = next(cursor_plan.smaller(cursor), cursor)
    assert list(stream_plan.smaller(plan)) == [] and plan.strikes == ()
    assert list(cursor_plan.smaller(cursor)) == [] and len(cursor.turns) == 1
