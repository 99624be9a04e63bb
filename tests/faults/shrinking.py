"""The smallest scenario that still goes wrong: with a fault or a load less, fewer records, tasks and partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.faults.campaign import Campaign
from tests.faults.environment import Environment
from tests.faults.result import Result
from tests.faults.scenario import Scenario

#: a race shows in some runs only
TRIES = 3
FEW_RECORDS = 100


def shrink(scenario: Scenario, still_fails: Callable[[Scenario], bool]) -> Scenario:
    """Take what can be taken until nothing can; ends, for each step makes it smaller."""
    while (smaller := next((s for s in smaller_ones(scenario) if still_fails(s)), None)) is not None:
        scenario = smaller
    return scenario


def smaller_ones(scenario: Scenario) -> Iterator[Scenario]:
    """Each a step smaller, the largest steps first. No I/O."""
    for n in range(len(scenario.faults)):
        yield replace(scenario, faults=_without(scenario.faults, n))
    for n in range(len(scenario.loads)):
        if len(scenario.loads) > 1 and all(fault.load != n for fault in scenario.faults):
            later = tuple(replace(f, load=f.load - (f.load > n)) for f in scenario.faults)
            yield replace(scenario, loads=_without(scenario.loads, n), faults=later)
    if any(load.records > FEW_RECORDS for load in scenario.loads):
        fewer = tuple(replace(load, records=max(FEW_RECORDS, load.records // 10)) for load in scenario.loads)
        yield replace(scenario, loads=fewer)
    if scenario.brokers > 1:
        yield replace(scenario, brokers=1)
    if max(scenario.tasks) > 2:
        yield replace(scenario, tasks=(min(2, scenario.tasks[0]), min(2, scenario.tasks[1])))
    if scenario.partitions > 2:
        yield replace(scenario, partitions=2)
    if scenario.speculates:
        yield replace(scenario, speculates=False)


def _without(some: tuple, number: int) -> tuple:  # type: ignore[type-arg]
    return some[:number] + some[number + 1 :]


def fails(scenario: Scenario, environment: Environment) -> bool:
    """Whether one of some runs goes wrong."""
    found: list[Result] = []
    for _ in range(TRIES):
        Campaign(environment, found.append).play([scenario])
        if found[-1].violations:
            return True
    return False
