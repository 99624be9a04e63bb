"""A scenario from a seed, always the same one. No I/O."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log
from typing import TypeVar

from tests.faults.places import PLACES, Place
from tests.faults.scenario import (
    DATABASE_KINDS,
    DATABASE_NET_KINDS,
    END_TXN_KINDS,
    LEDGER_SIDE,
    LONG_HOLD_MS,
    LOSING_KINDS,
    NET_KINDS,
    OPERATORS,
    SHORT_HOLD_MS,
    TIMEOUT_KINDS,
    WRITER_SIDE,
    WRITERS,
    Fault,
    Keeps,
    Kind,
    LoadPlan,
    Moment,
    Role,
    Scenario,
    Wish,
)

T = TypeVar("T")

FEWEST_RECORDS, MOST_RECORDS = 300, 50_000
MOST_FAULTS = 3
#: seeds from here on
LARGE = 2_000_000_000
#: and from here on
REAL = 3_000_000_000
#: of runs that nobody has kept; of so many of them one is killed at a step, each step in its turn
FRESH = range(1_000_000, 1_000_000_000)
STEP_RUNS = 4
#: what a real run is struck by: (kind, weight)
_REAL_KINDS = {Kind.SIGKILL: 6, Kind.PAUSE: 2, Kind.CLEAR: 3, Kind.BROKER_KILL: 1}
SUPERVISOR, ADMIN = "supervisor", "administrator"
#: in the names of the steps right behind what ends transactions
ENDS = "answer"
#: one that takes brokers down costs seconds, and has its cluster to itself
_WEIGHTS: dict[Kind, float] = {
    Kind.SIGKILL: 24,
    Kind.SIGTERM: 5,
    Kind.PAUSE: 12,
    Kind.CLOCK_JUMP: 6,
    Kind.LEDGER_LOCKED: 5,
    Kind.LEDGER_FULL: 4,
    Kind.LEDGER_DOWN: 5,
    Kind.LEDGER_HANGS: 4,
    Kind.LEDGER_KILL: 1,
    Kind.LEDGER_RESTART: 1,
    Kind.BROKER_KILL: 1.5,
    Kind.BROKER_PAUSE: 1,
    Kind.BROKER_RESTART: 1,
    Kind.NET_CUT: 6,
    Kind.NET_DELAY: 4,
    Kind.NET_ONE_WAY: 5,
    Kind.END_TXN_TWICE: 6,
    Kind.END_TXN_ANSWER_LOST: 6,
    Kind.TIMEOUT_BEFORE_DECISION: 2,
    Kind.TIMEOUT_AFTER_DECISION: 3,
    Kind.RETRY: 6,
    Kind.CLEAR: 4,
    Kind.SECOND_RUN: 6,
    Kind.CLEANUP_BESIDE: 6,
}
#: what administrators do, by the dice of worlds: so often in a run, and what of it
_ADMINS = 0.08
_ADMIN_WEIGHTS = {Kind.PARTITIONS_GROW: 2, Kind.TOPIC_RECREATED: 1, Kind.LEDGER_RESTORED: 2, Kind.FEATURE_UPGRADED: 1}
#: what an administrator waits for: behind the last of these a load changes nothing any more
_AT_WORK = ("run", *(role.value for role in (*OPERATORS[:4], *WRITERS)))
#: what stands for one of the kept seeds' versions in a fresh run; 4.0.0 raises epochs twice (KAFKA-19367)
_KAFKAS: dict[str, dict[str, float]] = {
    "3.9": {"3.9": 1},
    "4.1": {"4.0": 2, "4.0.0": 1, "4.1": 2, "4.1/1": 1, "4.2": 2, "4.3": 2},
    "4.4": {"4.4": 5, "4.4/0": 1, "4.4/1": 1},
}
_OF_2PC = ("4.1", "4.2", "4.3", "4.4")
#: what an outside hand waits for: the begin of one of these, or of the run
_EVENTS = ("run", *(role.value for role in (*OPERATORS, *WRITERS)))


def generate(seed: int) -> Scenario:
    """
    :param seed: 0 or more; from :data:`LARGE` on, a run of a million records over three brokers, from :data:`REAL` on
        one that goes through Airflow and Spark.
    """
    return _any(seed) if seed < LARGE else _large(seed) if seed < REAL else _real(seed)


def _real(seed: int) -> Scenario:
    dice = random.Random(f"faults {seed}")
    loads = tuple(
        LoadPlan(records=dice.randint(FEWEST_RECORDS, 5_000), size=60, keys=20) for _ in range(dice.choice([1, 1, 2]))
    )
    tasks = dice.randint(1, 4)
    faults = []
    for _ in range(_weighted(dice, {1: 3, 2: 2, 3: 1})):
        kind = _weighted(dice, _REAL_KINDS)
        role = dice.choice([*OPERATORS, Role.DRIVER, Role.DRIVER, Role.TASK, Role.TASK])
        of_airflow = role in OPERATORS
        target = SUPERVISOR if kind is Kind.SIGKILL and of_airflow and dice.random() < 0.2 else role.value
        if kind is Kind.CLEAR:
            target = dice.choice(OPERATORS).value
        delay = dice.randint(0, 400 if of_airflow else 6000 if role is Role.DRIVER else 800)
        seconds = dice.choice([0.5, 2.0]) if kind in (Kind.PAUSE, Kind.BROKER_KILL) else 0.0
        moment = Moment(event=role.value, delay_ms=delay)
        faults.append(Fault(kind, target, moment, dice.randrange(len(loads)), seconds))
    return Scenario(
        seed=seed,
        kafka="4.4",
        brokers=1,
        writer="arrow",
        scope=dice.choice(["task", "load"]),
        two_phase=False,
        naming="incrementing",
        ledger="sqlite",
        partitions=dice.randint(1, 6),
        tasks=(tasks, tasks),
        shares_topic=dice.random() < 0.5,
        speculates=False,
        hold_ms=LONG_HOLD_MS,
        retries=2,
        loads=loads,
        faults=tuple(faults),
    )


def _large(seed: int) -> Scenario:
    dice = random.Random(f"faults {seed}")
    every = (_any(dice.randrange(LARGE)) for _ in range(10_000))
    found = next(s for s in every if s.brokers == 3 and s.is_alone and s.hold_ms == LONG_HOLD_MS)
    load = LoadPlan(records=1_000_000, size=80, keys=50_000)  # in one topic that keeps all
    faults = tuple(replace(fault, load=0) for fault in found.faults)
    return replace(
        found, seed=seed, partitions=12, tasks=(8, 8), loads=(load,), keeps=Keeps.ALL, faults=faults
    )


def _any(seed: int) -> Scenario:
    dice = random.Random(f"faults {seed}")
    kafka = _weighted(dice, {"4.4": 5, "4.1": 3, "3.9": 2})
    writer = _weighted(dice, {"arrow": 3, "confluent": 1})
    scope = "task" if writer == "confluent" else _weighted(dice, {"task": 3, "load": 2})
    # granted from 4.1 on; librdkafka has none
    two_phase = kafka != "3.9" and writer == "arrow" and dice.random() < 0.4
    tasks = dice.randint(1, 8)
    partitions = dice.randint(1, 12)
    loads = _loads(dice)
    bare = Scenario(
        seed=seed,
        kafka=kafka,
        brokers=_weighted(dice, {1: 24, 3: 1}),
        writer=writer,
        scope=scope,
        two_phase=two_phase,
        naming=_weighted(dice, {"pooling": 1, "incrementing": 1}),
        ledger=_weighted(dice, {"sqlite": 1, "postgresql": 1}),
        partitions=partitions,
        tasks=(tasks, dice.choice([tasks, dice.randint(1, 8)])),
        shares_topic=dice.random() < 0.6,
        speculates=scope == "task" and dice.random() < 0.15,
        hold_ms=LONG_HOLD_MS,
        retries=dice.randint(0, 2),
        loads=loads,
    )
    if seed >= FRESH.start and seed % STEP_RUNS == 0:
        bare, faults = _at_a_step(bare, PLACES[seed // STEP_RUNS % len(PLACES)])
    else:
        faults = _faults(dice, bare)
    if any(_needs_failure(fault) for fault in faults):
        bare = replace(bare, retries=0)
    hurries = any(fault.kind in TIMEOUT_KINDS for fault in faults)
    hold_ms = SHORT_HOLD_MS if hurries else LONG_HOLD_MS
    return _that_can_be_finished(_in_its_world(replace(bare, faults=faults, hold_ms=hold_ms)))


def _at_a_step(scenario: Scenario, place: Place) -> tuple[Scenario, tuple[Fault, ...]]:
    """A load that comes by the step, and is killed there: dice alone leave steps out that few loads come by."""
    if not place.fits(scenario.scope, scenario.writer):
        writer = place.step.writers[0] if Role.TASK in place.roles else scenario.writer
        scopes = [scope.value for scope in place.step.scopes]
        scope = scenario.scope if scenario.scope in scopes else scopes[0]
        if scope == "load":
            writer = "arrow"
        scenario = replace(scenario, writer=writer, scope="task" if writer == "confluent" else scope)
        scenario = replace(
            scenario,
            two_phase=scenario.two_phase and writer == "arrow",
            speculates=scenario.speculates and scenario.scope == "task",
        )
    # some steps are between two transactions
    scenario = replace(scenario, tasks=(max(2, scenario.tasks[0]), max(2, scenario.tasks[1])))
    loads = tuple(replace(load, records=max(1000, load.records), fate=Wish.LOAD) for load in scenario.loads)
    # decide ends what it has decided: commit has that to do only where decide was kept from it
    fault = Fault(Kind.SIGKILL, place.roles[0].value, Moment(step=place.name))
    return replace(scenario, loads=loads), tuple(_with_failure(fault))


def _in_its_world(scenario: Scenario) -> Scenario:
    """What topics keep, and what records have in them: by dice of their own, so that a kept seed's faults stay."""
    dice = random.Random(f"worlds {scenario.seed}")
    loads = tuple(
        replace(load, rich=dice.random() < 0.4, topics=_weighted(dice, {1: 6, 2: 2, 3: 1})) for load in scenario.loads
    )
    keeps = _weighted(dice, {Keeps.ALL: 4, Keeps.NEWEST: 1, Keeps.HOUR: 1})
    found = replace(scenario, loads=loads, keeps=keeps)
    if scenario.seed < FRESH.start:
        return found
    # 4.0 has no two-phase commit, and who has 3.9's transaction version has none either
    some = {k: w for k, w in _KAFKAS[found.kafka].items() if k in _OF_2PC or not found.two_phase}
    found = replace(found, kafka=_weighted(dice, some))
    if scenario.seed % STEP_RUNS == 0 or dice.random() >= _ADMINS:
        return found
    kind = _weighted(dice, {k: w for k, w in _ADMIN_WEIGHTS.items() if _can_be(k, found)})
    fault = _from_outside(dice, found, kind, ADMIN, dice.choice([0.0, 0.2, 1.0]), _AT_WORK)
    # alone: whatever else goes wrong, who has lost a ledger or a topic has nothing to be judged by
    others = () if kind in LOSING_KINDS else found.faults[: MOST_FAULTS - 1]
    kafka = "4.4/1" if kind is Kind.FEATURE_UPGRADED else found.kafka
    return replace(found, kafka=kafka, faults=(*others, fault))


def _that_can_be_finished(scenario: Scenario) -> Scenario:
    """What is lost behind its decision may be compacted before it is copied, and prepare writes it again: into the
    partitions that it was in, and not in scope ``load``. Else a person has it, and there is nothing to be judged."""
    kinds = {fault.kind for fault in scenario.faults}
    can_be = scenario.scope == "task" and Kind.PARTITIONS_GROW not in kinds
    if scenario.keeps is Keeps.NEWEST and Kind.TIMEOUT_AFTER_DECISION in kinds and not can_be:
        return replace(scenario, keeps=Keeps.ALL)
    return scenario


def _loads(dice: random.Random) -> tuple[LoadPlan, ...]:
    count = _weighted(dice, {1: 5, 2: 3, 3: 1, 4: 1})
    loads = []
    for number in range(count):
        records = int(exp(dice.uniform(log(FEWEST_RECORDS), log(MOST_RECORDS))))
        loads.append(
            LoadPlan(
                records=records,
                size=dice.choice([48, 80, 120, 250]),
                keys=max(8, records // dice.choice([3, 10, 40])),
                fate=_weighted(dice, {Wish.LOAD: 18, Wish.REFUSE: 1, Wish.ABANDON: 1}),
                behind=number > 0 and dice.random() < 0.3,
            )
        )
    return tuple(loads)


def _faults(dice: random.Random, scenario: Scenario) -> tuple[Fault, ...]:
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if _can_be(kind, scenario)}
    if scenario.brokers == 3:  # what it is there for
        weights |= {Kind.BROKER_KILL: 40, Kind.BROKER_PAUSE: 15, Kind.BROKER_RESTART: 15}
    wanted = _weighted(dice, {1: 4, 2: 3, 3: 2})
    made: list[Fault] = []
    while len(made) < wanted:
        kind = _weighted(dice, weights)
        # one of a group is enough: two proxies' faults at once are one, and outages add up to minutes
        if any(_group(kind) == _group(fault.kind) for fault in made if _group(kind) != "process"):
            continue
        made += _with_failure(_MAKERS.get(kind, _of_a_process)(dice, scenario, kind))
    return tuple(made[:MOST_FAULTS])


def _needs_failure(fault: Fault) -> bool:
    """A cleanup has something to sweep, or to roll forward, only where its run has failed."""
    return (fault.moment.step or "").startswith(("sweep", "roll-forward"))


def _with_failure(fault: Fault) -> list[Fault]:
    """And so that its run does fail: decide dies, once, before or behind its decision."""
    if not _needs_failure(fault):
        return [fault]
    before = (fault.moment.step or "").startswith("sweep")
    step = "decide: the brokers confirmed the manifest" if before else "decide: after decide_commit is committed"
    return [Fault(Kind.SIGKILL, Role.DECIDE.value, Moment(step=step), fault.load), fault]


def _can_be(kind: Kind, scenario: Scenario) -> bool:
    if kind in (Kind.LEDGER_LOCKED, Kind.LEDGER_FULL, Kind.LEDGER_RESTORED):
        return scenario.ledger == "sqlite"
    if kind in (*DATABASE_NET_KINDS, *DATABASE_KINDS):
        return scenario.ledger == "postgresql"
    if kind.value.startswith("timeout") or kind is Kind.FEATURE_UPGRADED:
        return not scenario.two_phase
    return True


def _group(kind: Kind) -> str:
    if kind in NET_KINDS:
        return "net"
    return kind.value.partition("_")[0] if kind.value.startswith(("broker", "timeout", "ledger")) else (
        "process" if kind in (Kind.SIGKILL, Kind.SIGTERM, Kind.PAUSE, Kind.CLOCK_JUMP, Kind.RETRY) else kind.value
    )


def _of_a_process(dice: random.Random, scenario: Scenario, kind: Kind) -> Fault:
    load = dice.randrange(len(scenario.loads))
    seconds = {
        Kind.PAUSE: lambda: dice.choice([0.3, 1.0, 2.5]),
        Kind.LEDGER_FULL: lambda: dice.choice([0.3, 3.0]),
        Kind.CLOCK_JUMP: lambda: dice.choice([-3600.0, -120.0, -5.0, 5.0, 120.0, 3600.0]),
    }.get(kind, lambda: 0.0)()
    if kind in (Kind.SIGKILL, Kind.SIGTERM, Kind.PAUSE) and dice.random() < 0.6:
        places = [p for p in PLACES if p.fits(scenario.scope, scenario.writer)]
        own = [p for p in places if p.step.writers == (scenario.writer,) and Role.TASK in p.roles]
        # few loads are written by librdkafka, and few steps are its own
        place = dice.choice(own if own and dice.random() < 0.35 else places)
        target = dice.choice(place.roles)
        return Fault(kind, target.value, Moment(step=place.name), load, seconds)
    roles: Sequence[Role] = (*OPERATORS, *WRITERS, Role.TASK, Role.TASK)
    if kind in (Kind.LEDGER_FULL, Kind.RETRY):
        roles = OPERATORS[:5] if kind is Kind.LEDGER_FULL else OPERATORS
    role = dice.choice(roles)
    at_once = kind in (Kind.CLOCK_JUMP, Kind.LEDGER_FULL, Kind.RETRY)
    delay = 0 if at_once else dice.randint(0, 400)
    return Fault(kind, role.value, Moment(event=role.value, delay_ms=delay), load, seconds)


def _of_brokers(dice: random.Random, scenario: Scenario, kind: Kind) -> Fault:
    targets = {"any": 1} if scenario.brokers == 1 else {"leader": 4, "coordinator": 4, "any": 2, "all": 1}
    if scenario.brokers == 1 and dice.random() < 0.3:
        targets = {"all": 1, "leader": 1, "coordinator": 1}
    seconds = dice.choice([0.5, 1.5, 4.0]) if kind is Kind.BROKER_PAUSE else dice.choice([0.0, 1.0])
    fault = _from_outside(dice, scenario, kind, _weighted(dice, targets), seconds)
    # what a broker has decided and not written down everywhere is where it may forget (docs/adr/0021)
    own = random.Random(f"brokers {scenario.seed}")
    fitting = [p for p in PLACES if p.fits(scenario.scope, scenario.writer) and ENDS in p.name]
    return replace(fault, moment=Moment(step=own.choice(fitting).name)) if own.random() < 0.6 else fault


def _of_net(dice: random.Random, scenario: Scenario, kind: Kind) -> Fault:
    ends = kind in END_TXN_KINDS
    # librdkafka's sockets are its own
    both = scenario.writer == "arrow" and not ends
    target = dice.choice([LEDGER_SIDE, WRITER_SIDE]) if both else LEDGER_SIDE
    if ends:
        return Fault(kind, target, Moment(), 0, dice.choice([0.0, 0.05, 0.3, 1.5]))
    # a load's writers live for a part of its run: at any other moment there is nobody to be cut off
    events = [role.value for role in WRITERS] if target == WRITER_SIDE else _EVENTS
    return _from_outside(dice, scenario, kind, target, dice.choice([0.2, 1.0, 2.5]), events)


def _of_ledger(dice: random.Random, scenario: Scenario, kind: Kind) -> Fault:
    return _from_outside(dice, scenario, kind, "database", dice.choice([0.3, 1.5, 3.0]))


def _of_time(dice: random.Random, scenario: Scenario, kind: Kind) -> Fault:
    return Fault(kind, Role.DECIDE.value, Moment(event=Role.DECIDE.value), dice.randrange(len(scenario.loads)))


def _of_users(dice: random.Random, scenario: Scenario, kind: Kind) -> Fault:
    return _from_outside(dice, scenario, kind, "load", 0.0)


def _from_outside(
    dice: random.Random,
    scenario: Scenario,
    kind: Kind,
    target: str,
    seconds: float,
    events: Sequence[str] = _EVENTS,
) -> Fault:
    moment = Moment(event=dice.choice(events), delay_ms=dice.choice([0, dice.randint(0, 50), dice.randint(0, 600)]))
    return Fault(kind, target, moment, dice.randrange(len(scenario.loads)), seconds)


_MAKERS: dict[Kind, Callable[[random.Random, Scenario, Kind], Fault]] = {
    **dict.fromkeys((Kind.BROKER_KILL, Kind.BROKER_PAUSE, Kind.BROKER_RESTART), _of_brokers),
    **dict.fromkeys(NET_KINDS, _of_net),
    **dict.fromkeys((Kind.LEDGER_LOCKED, *DATABASE_NET_KINDS, *DATABASE_KINDS), _of_ledger),
    **dict.fromkeys((Kind.TIMEOUT_BEFORE_DECISION, Kind.TIMEOUT_AFTER_DECISION), _of_time),
    **dict.fromkeys((Kind.CLEAR, Kind.SECOND_RUN, Kind.CLEANUP_BESIDE), _of_users),
}


def _weighted(dice: random.Random, weights: dict[T, float] | dict[T, int]) -> T:
    return dice.choices(list(weights), list(weights.values()))[0]
