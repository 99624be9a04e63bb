"""Killed at any step, the load arrives exactly once when Airflow comes back, and nobody else's transaction is touched.

CI takes each step on every Kafka version, with both databases and both scopes among the three; ``CRASHES=all`` takes
every combination.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from airflow_kafka_eos.load import TransactionScope
from tests.crashes.conftest import Clusters
from tests.crashes.foreign import Foreigners
from tests.crashes.recovery import Recovery, check_all_is_well, recover
from tests.crashes.steps import STEPS, Run, Step
from tests.crashes.victim import Order, place
from tests.crashes.zygote import Zygote

pytestmark = pytest.mark.broker

VERSIONS = ("3.9", "4.1", "4.4")
DATABASES = ("sqlite", "postgresql")


class Case(NamedTuple):
    version: str
    step: Step
    scope: TransactionScope
    database: str
    recovery: Recovery

    @property
    def id(self) -> str:
        return f"{self.version}-{self.scope.value}-{self.database}-{self.recovery.value}-{self.step.name}"


def every_case() -> list[Case]:
    return [
        Case(version, step, scope, database, recovery)
        for version in VERSIONS
        for step in STEPS
        for scope, database, recovery in itertools.product(step.scopes, DATABASES, Recovery)
    ]


def chosen_cases() -> list[Case]:
    """Three of each step: all versions, both databases, both scopes where there are two, both ways to recover."""
    chosen = []
    for at, version in enumerate(VERSIONS):
        for number, step in enumerate(STEPS):
            scope = step.scopes[(number + at) % len(step.scopes)]
            database = DATABASES[(number // 2 + (at + 1) // 2) % 2]
            recovery = list(Recovery)[(number // 4 + at // 2) % 2]
            chosen.append(Case(version, step, scope, database, recovery))
    return chosen


CASES = every_case() if os.environ.get("CRASHES") == "all" else chosen_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_killed_and_recovered(
    clusters: Clusters, case: Case, victims: Zygote, ledger_urls: dict[str, str], tmp_path: Path
) -> None:
    cluster = clusters.of(case.version)
    topic = cluster.new_topic()
    order = Order(
        step=case.step.name,
        servers=cluster.servers,
        ledger_url=ledger_urls[case.database],
        topic=topic,
        key=topic,
        scope=case.scope.value,
        two_phase=case.version == "4.4",
        folder=str(tmp_path),
    )
    world = place(cluster.session(case.database), order)
    foreigners = Foreigners(cluster.wire, world, cluster.foreign_topic)
    ended = victims.kill_at(order)
    assert ended.signal == signal.SIGKILL, f"it was not killed at its step: {ended.errors}"
    recover(world, case.recovery)
    check_all_is_well(world)
    foreigners.check_untouched()


def test_the_table_names_the_five_failure_points_of_the_slides() -> None:
    """Slides 54 to 58: not prepared; prepared; written to the database; committed there; committed in Kafka too."""
    assert sorted(step.slide for step in STEPS if step.slide is not None) == [1, 2, 3, 4, 5]
    assert all(step.run is Run.LOAD for step in STEPS if step.slide is not None)


def test_ci_takes_each_step_everywhere() -> None:
    for step in STEPS:
        mine = [c for c in chosen_cases() if c.step == step]
        assert {c.version for c in mine} == set(VERSIONS)
        assert {c.scope for c in mine} == set(step.scopes)
        assert {c.database for c in mine} == set(DATABASES)
        assert {c.recovery for c in mine} == set(Recovery)


def test_names_are_unique() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
