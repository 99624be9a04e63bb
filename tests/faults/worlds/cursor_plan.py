"""What happens in a cursor world: by its seed, always the same. No I/O."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

FEWEST_TURNS, MOST_TURNS = 5, 10
#: what a person, or Airflow for one, does at a turn
SET, BACK, NAMED, CLEAR, CLEANUP, MAINTENANCE = "set", "back", "range by name", "clear", "cleanup", "maintenance"
BROKER, LEDGER = "broker", "ledger"


@dataclass(frozen=True)
class Run:
    """
    :param retries: of a run that was left, where there is one; else a new one.
    :param struck: ``kill``, ``pause`` or nothing.
    :param at: where on its way, from 0 to 1.
    :param seconds: it stands still for so long.
    """

    retries: bool
    struck: str = ""
    at: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Turn:
    """Runs that go on at the same time, and what happens meanwhile and behind them.

    :param person: one of the above, or nothing.
    :param person_meanwhile: beside the runs; else behind them.
    :param outage: ``broker``, ``ledger`` or nothing, ``delay_s`` behind the runs' begin and for so many ``seconds``.
    :param chance: which of what there is to choose from.
    """

    runs: tuple[Run, ...]
    person: str = ""
    person_meanwhile: bool = False
    outage: str = ""
    delay_s: float = 0.0
    seconds: float = 0.0
    chance: int = 0


@dataclass(frozen=True)
class CursorPlan:
    """
    :param job_chooses: where a range ends is the job's word.
    """

    seed: int
    ledger: str
    job_chooses: bool
    turns: tuple[Turn, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CursorPlan:
        found: dict[str, Any] = json.loads(text)
        turns = tuple(Turn(**one | {"runs": tuple(Run(**run) for run in one["runs"])}) for one in found["turns"])
        return cls(**found | {"turns": turns})

    @property
    def dimensions(self) -> dict[str, str]:
        return {"ledger": self.ledger, "end chosen by": "the job" if self.job_chooses else "its source"}


def generate(seed: int) -> CursorPlan:
    dice = random.Random(f"cursors {seed}")
    # ranges by name lie behind the cursor, so that one that goes back would meet them
    persons = (SET, CLEAR, CLEANUP, MAINTENANCE, dice.choice((BACK, NAMED)))
    ledger, job_chooses = dice.choice(("sqlite", "postgresql")), dice.random() < 0.5
    turns = tuple(_turn(dice, persons) for _ in range(dice.randint(FEWEST_TURNS, MOST_TURNS)))
    return CursorPlan(seed, ledger, job_chooses, turns)


def _turn(dice: random.Random, persons: tuple[str, ...]) -> Turn:
    runs = tuple(_run(dice) for _ in range(1 + (dice.random() < 0.35)))
    outage = dice.choices(("", BROKER, LEDGER), (0.85, 0.05, 0.1))[0]
    person = dice.choice(persons) if dice.random() < 0.55 else ""
    meanwhile = person in (SET, CLEANUP, MAINTENANCE) and dice.random() < 0.5
    return Turn(
        runs, person, meanwhile, outage, dice.uniform(0, 0.6), dice.uniform(0.1, 2), dice.randrange(1000)
    )  # fmt: skip


def _run(dice: random.Random) -> Run:
    struck = dice.choices(("", "kill", "pause"), (0.4, 0.45, 0.15))[0]
    return Run(dice.random() < 0.6, struck, dice.random(), dice.uniform(0.2, 1.5))


def smaller(plan: CursorPlan) -> Iterator[CursorPlan]:
    """Each a step smaller."""
    for n in range(len(plan.turns)):
        if len(plan.turns) > 1:
            yield replace(plan, turns=plan.turns[:n] + plan.turns[n + 1 :])
    for n, turn in enumerate(plan.turns):
        for less in (replace(turn, outage=""), replace(turn, person=""), replace(turn, runs=turn.runs[:1])):
            if less != turn:
                yield replace(plan, turns=(*plan.turns[:n], less, *plan.turns[n + 1 :]))
