"""The scenario space: every value of every dimension and every kind of fault is met, and a seed is its scenario."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults import real
from tests.faults.generating import ENDS, FRESH, LARGE, MOST_FAULTS, REAL, STEP_RUNS, SUPERVISOR, generate
from tests.faults.places import PLACES
from tests.faults.scenario import (
    ADMIN_KINDS,
    BROKER_KINDS,
    BROKERS,
    DATABASE_KINDS,
    DATABASE_NET_KINDS,
    LEDGER_SIDE,
    LOSING_KINDS,
    OPERATORS,
    WRITER_SIDE,
    WRITERS,
    Keeps,
    Kind,
    Scenario,
    Wish,
    dimensions,
)

SEEDS = range(2000)


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return [generate(seed) for seed in SEEDS]


def test_a_seed_is_its_scenario() -> None:
    assert [generate(seed) for seed in range(50)] == [generate(seed) for seed in range(50)]


def test_a_scenario_survives_json(scenarios: list[Scenario]) -> None:
    assert [Scenario.from_json(s.to_json()) for s in scenarios[:200]] == scenarios[:200]


def test_every_value_of_every_dimension_is_met(scenarios: list[Scenario]) -> None:
    seen: dict[str, set[str]] = {}
    for scenario in scenarios:
        for name, value in dimensions(scenario).items():
            seen.setdefault(name, set()).add(value)
    assert seen == {
        "Kafka": {"3.9", "4.1", "4.4"},
        "brokers": {"1", "3"},
        "writer": {"arrow", "confluent"},
        "scope": {"task", "load"},
        "two-phase commit": {"on", "off"},
        "naming": {"pooling", "incrementing"},
        "ledger": {"sqlite", "postgresql"},
        "partitions": {str(n) for n in range(1, 13)},
        "tasks": {str(n) for n in range(1, 9)},
        "tasks change": {"true", "false"},
        "loads": {"1", "2", "3", "4"},
        "topics of a load": {"1", "2", "3"},
        "times, headers, nulls": {"true", "false"},
        "topics keep": {"all", "newest", "hour"},
        "faults": {"1", "2", "3"},
    }
    assert {load.fate for s in scenarios for load in s.loads} == set(Wish)


def test_every_fault_is_met_at_every_target(scenarios: list[Scenario]) -> None:
    faults = [fault for s in scenarios for fault in s.faults]
    assert {f.kind for f in faults} == set(Kind) - {*ADMIN_KINDS}
    processes = {role.value for role in (*OPERATORS, *WRITERS)}
    for kind in (Kind.SIGKILL, Kind.SIGTERM, Kind.PAUSE, Kind.CLOCK_JUMP):
        assert {f.target for f in faults if f.kind is kind} == processes
    assert {f.target for f in faults if f.kind is Kind.BROKER_KILL} == set(BROKERS)
    at_ends = {f.moment.step for f in faults if f.kind in BROKER_KINDS} - {None}
    assert at_ends == {place.name for place in PLACES if ENDS in place.name}
    assert {f.target for f in faults if f.kind is Kind.NET_ONE_WAY} == {LEDGER_SIDE, WRITER_SIDE}
    steps = Counter(f.moment.step for f in faults if f.moment.step)
    assert set(steps) == {place.name for place in PLACES}


def test_fresh_runs_are_on_every_broker_line() -> None:
    fresh = [generate(FRESH.start + n) for n in range(1000)]
    assert {s.kafka for s in fresh} == {"3.9", "4.0.0", "4.0", "4.1", "4.1/1", "4.2", "4.3", "4.4", "4.4/0", "4.4/1"}
    assert {s.kafka for s in fresh if s.two_phase} == {"4.1", "4.2", "4.3", "4.4"}
    upgraded = [s for s in fresh if Kind.FEATURE_UPGRADED in {f.kind for f in s.faults}]
    assert upgraded and all(s.is_alone and s.kafka == "4.4/1" and not s.two_phase for s in upgraded)


def test_each_step_has_its_turn() -> None:
    """Six steps were never struck in a campaign of a thousand runs: few loads come by there."""
    begin = FRESH.start
    fresh = [generate(begin + n) for n in range(STEP_RUNS * len(PLACES))]
    at_steps = {f.moment.step for s in fresh if s.seed % STEP_RUNS == 0 for f in s.faults}
    assert at_steps == {place.name for place in PLACES}
    by_name = {place.name: place for place in PLACES}
    for s in fresh:
        if s.seed % STEP_RUNS == 0:
            for fault in s.faults:
                assert by_name[str(fault.moment.step)].fits(s.scope, s.writer)
            assert not (s.writer == "confluent" and (s.scope == "load" or s.two_phase))
            assert not (s.speculates and s.scope == "load")


def test_administrators_do_what_they_do_in_fresh_runs() -> None:
    """Kept seeds are older than they."""
    fresh = [generate(FRESH.start + n) for n in range(1000)]
    theirs = [s for s in fresh if any(f.kind in ADMIN_KINDS for f in s.faults)]
    assert {f.kind for s in theirs for f in s.faults if f.kind in ADMIN_KINDS} == {*ADMIN_KINDS}
    assert all(len(s.faults) <= MOST_FAULTS for s in theirs)
    for s in theirs:
        lost = [f for f in s.faults if f.kind in LOSING_KINDS]
        assert not lost or len(s.faults) == 1
        assert s.recreates_topics == (Kind.TOPIC_RECREATED in {f.kind for f in lost})
        assert s.ledger == "sqlite" or Kind.LEDGER_RESTORED not in {f.kind for f in lost}


def test_only_what_can_be_is_asked_for(scenarios: list[Scenario]) -> None:
    """librdkafka has neither two-phase commit nor shared transactions, Kafka 3.9 grants no 2PC."""
    for s in scenarios:
        assert not (s.writer == "confluent" and (s.scope == "load" or s.two_phase))
        assert not (s.kafka == "3.9" and s.two_phase)
        assert not (s.two_phase and any(f.kind.value.startswith("timeout") for f in s.faults))
        assert all(f.load < len(s.loads) for f in s.faults)
        kinds = {f.kind for f in s.faults}
        assert not (s.ledger == "sqlite" and kinds & {*DATABASE_KINDS, *DATABASE_NET_KINDS})
        assert not (s.ledger == "postgresql" and kinds & {Kind.LEDGER_LOCKED, Kind.LEDGER_FULL})
        assert s.takes_database_down == bool(kinds & {*DATABASE_KINDS})


def test_what_is_lost_and_compacted_can_be_prepared_again(scenarios: list[Scenario]) -> None:
    """Seed 379317338 is one: in scope load, or into other partitions, nobody could finish it."""
    fresh = [generate(FRESH.start + n) for n in range(20_000)]
    late = [s for s in (*scenarios, *fresh) if Kind.TIMEOUT_AFTER_DECISION in {f.kind for f in s.faults}]
    grow = {s.seed for s in late if Kind.PARTITIONS_GROW in {f.kind for f in s.faults}}
    assert grow and "load" in {s.scope for s in late}
    lost = [s for s in late if s.keeps is Keeps.NEWEST]
    assert lost and {s.scope for s in lost} == {"task"} and not grow & {s.seed for s in lost}
    assert generate(379317338).keeps is Keeps.NEWEST


def test_writers_are_cut_off_while_there_are_some(scenarios: list[Scenario]) -> None:
    moments = [f.moment.event for s in scenarios for f in s.faults if f.target == WRITER_SIDE]
    assert set(moments) == {role.value for role in WRITERS}


def test_large_runs_are_large() -> None:
    for seed in range(LARGE, LARGE + 5):
        found = generate(seed)
        assert (found.seed, found.records, found.partitions, found.brokers) == (seed, 1_000_000, 12, 3)
        assert found == generate(seed) and {f.load for f in found.faults} == {0}


def test_real_runs_are_what_a_real_run_can_have() -> None:
    """As :mod:`.real` can play them, and no more."""
    found = [generate(REAL + n) for n in range(300)]
    assert found == [generate(s.seed) for s in found]
    assert [Scenario.from_json(s.to_json()) for s in found] == found
    assert {s.cluster for s in found} == {("4.4", 1)} and {s.scope for s in found} == {"task", "load"}
    assert {(s.writer, s.ledger, s.naming, s.two_phase) for s in found} == {("arrow", "sqlite", "incrementing", False)}
    assert {load.fate for s in found for load in s.loads} == {Wish.LOAD}
    faults = [fault for s in found for fault in s.faults]
    assert {f.kind for f in faults} == set(real._STRIKES)
    roles = {role.value for role in (*OPERATORS, *WRITERS)}
    assert {f.moment.event for f in faults} == roles
    assert {f.target for f in faults} == {*roles, SUPERVISOR}
    assert {f.kind for f in faults if f.target == SUPERVISOR} == {Kind.SIGKILL}
    assert all(f.load < len(s.loads) for s in found for f in s.faults)


def test_a_thousand_runs_are_ten_million_records(scenarios: list[Scenario]) -> None:
    for begin in (0, 1000):
        assert sum(s.records for s in scenarios[begin : begin + 1000]) > 11_000_000
