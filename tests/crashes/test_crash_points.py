"""Killed at any step, the load arrives exactly once when Airflow comes back, and nobody else's transaction is touched.

CI takes each step on every Kafka version, with both databases and both scopes among the three, and librdkafka's own
steps once; ``CRASHES=all`` takes every combination.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.crew import FOREIGN_TOPIC, Crew, Hand
from tests.crashes.foreign import Foreigners
from tests.crashes.recovery import Recovery, check_all_is_well, recover
from tests.crashes.steps import ARROW, CONFLUENT, STEPS, Run, Step
from tests.crashes.victim import PARTS, Order, place
from tests.crashes.zygote import Zygote

pytestmark = pytest.mark.broker

VERSIONS = ("3.9", "4.1", "4.4")
DATABASES = ("sqlite", "postgresql")
_numbers = itertools.count(1)


class Case(NamedTuple):
    version: str
    step: Step
    scope: TransactionScope
    database: str
    recovery: Recovery
    writer: str = ARROW

    @property
    def id(self) -> str:
        places = (self.version, self.scope.value, self.database, self.recovery.value)
        return "-".join([*places, *[CONFLUENT] * (self.writer == CONFLUENT), self.step.name])


def every_case() -> list[Case]:
    return [
        Case(version, step, scope, database, recovery, writer)
        for version in VERSIONS
        for step in STEPS
        for writer in step.writers
        for scope, database, recovery in itertools.product(
            step.scopes if writer == ARROW else (TransactionScope.TASK,), DATABASES, Recovery
        )
    ]


def chosen_cases() -> list[Case]:
    """Three of each step: all versions, both databases, both scopes where there are two, both ways to recover.

    And one of each that only librdkafka has, on one version after the other.
    """
    chosen = []
    ours = [step for step in STEPS if ARROW in step.writers]
    others = [step for step in STEPS if ARROW not in step.writers]
    for at, version in enumerate(VERSIONS):
        for number, step in enumerate(ours):
            scope = step.scopes[(number + at) % len(step.scopes)]
            database = DATABASES[(number // 2 + (at + 1) // 2) % 2]
            recovery = list(Recovery)[(number // 4 + at // 2) % 2]
            chosen.append(Case(version, step, scope, database, recovery))
        for number, step in enumerate(others):
            if number % len(VERSIONS) == at:
                database, recovery = DATABASES[number % 2], list(Recovery)[number // 2 % 2]
                chosen.append(Case(version, step, TransactionScope.TASK, database, recovery, CONFLUENT))
    return chosen


CASES = every_case() if os.environ.get("CRASHES") == "all" else chosen_cases()


def kill_and_recover(hand: Hand, case: Case, folder: Path) -> None:
    """One case, from an empty topic to the count of what readers see."""
    topic = f"crashes-{next(_numbers)}"
    hand.kafka.create_topic(topic, partitions=len(PARTS))
    order = Order(
        step=case.step.name,
        servers=hand.servers,
        ledger_url=hand.urls[case.database],
        topic=topic,
        key=topic,
        scope=case.scope.value,
        two_phase=case.version == "4.4" and case.writer == ARROW,
        folder=str(folder / topic),
        writer=case.writer,
    )
    (folder / topic).mkdir()
    world = place(hand.session(case.database), order)
    foreigners = Foreigners(hand.wire, world, FOREIGN_TOPIC)
    ended = hand.victims.kill_at(order)
    assert ended.signal == signal.SIGKILL, f"it was not killed at its step: {ended.errors}"
    recover(world, case.recovery)
    check_all_is_well(world, hand.reader)
    foreigners.check_untouched()


class Crews:
    """One broker after the other, for cases come ordered by version; 4.4's is that of the whole test session."""

    def __init__(
        self, request: pytest.FixtureRequest, folder: Path, urls: dict[str, str], victims: Zygote
    ) -> None:
        items = request.session.items
        self._cases = [
            i.callspec.params["case"]  # type: ignore[attr-defined]
            for i in items if i.fspath == request.node.fspath and _has_case(i)
        ]
        self._request = request
        self._folder = folder
        self._urls = urls
        self._victims = victims
        self._version = ""
        self._crew: Crew[Case] | None = None
        self._stack = ExitStack()

    def of(self, version: str) -> Crew[Case]:
        if self._crew is None or version != self._version:
            self.close()
            self._version = version
            work = partial(kill_and_recover, folder=self._folder)
            self._crew = Crew(self._broker(version), self._urls, self._victims, work)
            self._stack.callback(self._crew.close)
            self._crew.start([case for case in self._cases if case.version == version])
        return self._crew

    def close(self) -> None:
        self._stack.close()
        self._crew = None

    def _broker(self, version: str) -> LocalKafka:
        if version == "4.4":
            shared: LocalKafka = self._request.getfixturevalue("kafka")
            return shared
        return self._stack.enter_context(LocalKafka(version=version, heap="256m"))


def _has_case(item: pytest.Item) -> bool:
    return "case" in getattr(getattr(item, "callspec", None), "params", {})


@pytest.fixture(scope="module")
def crews(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    ledger_urls: dict[str, str],
    victims: Zygote,
) -> Iterator[Crews]:
    every = Crews(request, tmp_path_factory.mktemp("victims"), ledger_urls, victims)
    yield every
    every.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_killed_and_recovered(crews: Crews, case: Case) -> None:
    crews.of(case.version).result(case)


def test_the_table_names_the_five_failure_points_of_the_slides() -> None:
    """Slides 54 to 58: not prepared; prepared; written to the database; committed there; committed in Kafka too."""
    assert sorted(step.slide for step in STEPS if step.slide is not None) == [1, 2, 3, 4, 5]
    assert all(step.run is Run.LOAD for step in STEPS if step.slide is not None)


def test_ci_takes_each_step_everywhere() -> None:
    for step in (s for s in STEPS if ARROW in s.writers):
        mine = [c for c in chosen_cases() if c.step == step]
        assert {c.version for c in mine} == set(VERSIONS)
        assert {c.scope for c in mine} == set(step.scopes)
        assert {c.database for c in mine} == set(DATABASES)
        assert {c.recovery for c in mine} == set(Recovery)


def test_ci_takes_each_step_of_librdkafka_somewhere() -> None:
    of_it = [c for c in chosen_cases() if c.writer == CONFLUENT]
    assert {c.step for c in of_it} == {s for s in STEPS if s.writers == (CONFLUENT,)}
    assert {c.version for c in of_it} == set(VERSIONS)
    assert {c.database for c in of_it} == set(DATABASES)
    assert {c.recovery for c in of_it} == set(Recovery)


def test_names_are_unique() -> None:
    assert len({step.name for step in STEPS}) == len(STEPS)
