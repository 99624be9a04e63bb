"""Replay a recorded trace in a world that says what the environment did, and compare where both have ended."""

from __future__ import annotations

from typing import Any

from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.transaction import Outcome
from tests.crashes.victim import ALL, Place
from tests.model.recorder import Event
from tests.model.replay import Replay, specification

MODEL = specification()


def replay(
    events: list[Event], scope: TransactionScope = TransactionScope.TASK, attempts: int = 1, **more: Any
) -> Replay:
    """:param more: fields of the specification's ``World``."""
    settings = {
        "scope": scope.value,
        "tasks": 2,
        "begins": (0,) * attempts,
        "pool": 2 * attempts,
        "cleaners": 2,
    }
    return Replay(MODEL, MODEL.World(**settings | more)).run(events)


def check(found: Replay, world: Place, attempt: int = 1) -> None:
    """The model ends where the run ended: all that readers see is this attempt's."""
    assert found.settled()
    assert found.visible() == {frozenset({(attempt, 0), (attempt, 1)})}
    assert world.visible() == ALL


def load_all(world: Place) -> None:
    world.decide(world.prepare_all())
    world.commit()
    world.clean()


def moved(events: list[Event], kind: str, before: str) -> list[Event]:
    """The first event of a kind that says something, moved right before the first one of another."""
    at = next(n for n, e in enumerate(events) if e.kind == kind and says_something(e))
    to = [e.kind for e in events].index(before)
    assert to < at
    return [*events[:to], events[at], *events[to:at], *events[at + 1 :]]


def says_something(event: Event) -> bool:
    """A look at logs that have no marker yet may come at any time."""
    return event.kind != "found" or Outcome.COMMITTED in event.what["outcomes"].values()
