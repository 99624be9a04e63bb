"""``WORLD=streams python -m tests.faults`` and ``WORLD=cursors``: runs by seed, side by side, told and written.

It takes ``RUNS``, ``SEED``, ``SCENARIO``, ``SHRINK``, ``MINUTES``, ``HANDS`` and ``OUT`` as a campaign of loads does;
of ``WORLD=streams`` ``REAL`` says how many run by Spark itself besides.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.cursor_victim import Victims, victims
from tests.faults.environment import Environment, cluster
from tests.faults.report import tree_of_the_package
from tests.faults.worlds import cursor_plan, cursor_world, stream_plan, stream_world
from tests.faults.worlds.forked_engine import engine
from tests.faults.worlds.outcome import Outcome, Plan

P = TypeVar("P", bound=Plan)

KAFKA = ("4.4", 1)
FRESH = range(1_000_000, 1_000_000_000)
TRIES = 2
#: behind so many runs a hand gets a new cluster
RUNS_OF_A_CLUSTER = 60


class World(Protocol):
    """One hand of a world: what its runs need is up while it is open."""

    def generate(self, seed: int) -> Any: ...

    def read(self, text: str) -> Any: ...

    def smaller(self, plan: Any) -> Iterable[Any]: ...

    def hand(self) -> Any: ...

    def play(self, plan: Any, kafka: LocalKafka, environment: Environment, hand: Any) -> Outcome: ...


class Streams:
    """See :mod:`.stream_world`. A hand is where drivers by forks are started."""

    def generate(self, seed: int) -> stream_plan.StreamPlan:
        return stream_plan.generate(seed)

    def read(self, text: str) -> stream_plan.StreamPlan:
        return stream_plan.StreamPlan.from_json(text)

    def smaller(self, plan: stream_plan.StreamPlan) -> Iterator[stream_plan.StreamPlan]:
        return stream_plan.smaller(plan)

    @contextmanager
    def hand(self) -> Iterator[str]:
        with engine() as address:
            yield address

    def play(
        self, plan: stream_plan.StreamPlan, kafka: LocalKafka, environment: Environment, hand: str
    ) -> Outcome:
        return stream_world.play(plan, kafka, environment, hand)


class Cursors:
    """See :mod:`.cursor_world`. A hand is the process that forks its loads."""

    def generate(self, seed: int) -> cursor_plan.CursorPlan:
        return cursor_plan.generate(seed)

    def read(self, text: str) -> cursor_plan.CursorPlan:
        return cursor_plan.CursorPlan.from_json(text)

    def smaller(self, plan: cursor_plan.CursorPlan) -> Iterator[cursor_plan.CursorPlan]:
        return cursor_plan.smaller(plan)

    @contextmanager
    def hand(self) -> Iterator[Victims]:
        with victims() as running:
            yield running

    def play(
        self, plan: cursor_plan.CursorPlan, kafka: LocalKafka, environment: Environment, hand: Victims
    ) -> Outcome:
        return cursor_world.play(plan, kafka, environment, hand)


WORLDS: dict[str, World] = {"streams": Streams(), "cursors": Cursors()}


def chosen(environ: Mapping[str, str], world: World, dice: random.Random) -> list[Any]:
    """What to play."""
    if environ.get("SCENARIO"):
        return [world.read(Path(environ["SCENARIO"]).read_text(encoding="utf-8"))]
    parts = [part.partition("..") for part in environ.get("SEED", "").split(",") if part]
    named = [seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1)]
    if not named:
        named = [dice.choice(FRESH) for _ in range(int(environ.get("RUNS", "20")))]
        named += [stream_plan.BY_SPARK + dice.randrange(1_000_000) for _ in range(int(environ.get("REAL", "0")))]
    return [world.generate(seed) for seed in named]


@dataclass
class Tally:
    """Over runs."""

    world: str
    meant: int
    runs: int = 0
    seeds: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)
    strikes: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    figures: dict[str, list[float]] = field(default_factory=dict)
    dimensions: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.seeds.append(outcome.plan.seed)
        self.seconds.append(outcome.seconds)
        if outcome.violations:
            self.failed.append(outcome.plan.seed)
        self.violations.update(v.kind for v in outcome.violations)
        for kind, where, struck in outcome.strikes:
            found = self.strikes.setdefault((kind, where), [0, 0])
            found[0] += 1
            found[1] += struck
        for name, value in outcome.figures.items():
            self.figures.setdefault(name, []).append(value)
        for name, text in outcome.plan.dimensions.items():
            self.dimensions.setdefault(name, Counter())[text] += 1

    def summary(self) -> str:
        found = ", ".join(f"{kind} {n}" for kind, n in sorted(self.violations.items())) or "none"
        struck, meant = (sum(one[n] for one in self.strikes.values()) for n in (1, 0))
        return (
            f"{self.runs} of {self.meant} runs of world {self.world}, {struck} of {meant} strikes fell, "
            f"{(time.monotonic() - self.began) / 60:.1f} minutes; violations: {found}"
            + (f"; seeds {sorted(self.failed)}" if self.failed else "")
        )

    def as_values(self) -> dict[str, Any]:
        """JSON values; the page shows the same."""
        return {
            "world": self.world,
            "tree": tree_of_the_package(),
            "runs": self.runs,
            "meant runs": self.meant,
            "seeds": sorted(self.seeds),
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "seconds of a run": _of(self.seconds),
            "violations": dict(sorted(self.violations.items())),
            "failed seeds": sorted(self.failed),
            "figures": {name: _of(found) | {"sum": round(sum(found), 1)} for name, found in self.figures.items()},
            "strikes": [
                {"kind": kind, "where": where, "meant": meant, "struck": struck}
                for (kind, where), (meant, struck) in sorted(self.strikes.items())
            ],
            "dimensions": {name: dict(sorted(found.items())) for name, found in self.dimensions.items()},
        }


def _of(found: list[float]) -> dict[str, float]:
    if not found:
        return {"median": 0, "largest": 0}
    return {"median": round(statistics.median(found), 2), "largest": round(max(found), 2)}


def told(outcome: Outcome, number: int, world: str) -> str:
    """A line; of a run that went wrong, all that there is."""
    fell = ", ".join(f"{kind} {where}{'' if struck else ' (not)'}" for kind, where, struck in outcome.strikes)
    figures = ", ".join(f"{name} {value:g}" for name, value in outcome.figures.items())
    line = f"{number:5} seed {outcome.plan.seed:<10} {outcome.seconds:5.1f} s; {fell}; {figures}"
    if not outcome.violations:
        return line
    violations = "\n".join(f"  {v.kind}: {v.text}" for v in outcome.violations[:20])
    return (
        f"{line}\nVIOLATED by seed {outcome.plan.seed}:\n{violations}\nscenario: {outcome.plan.to_json()}\n"
        f"timeline:\n{outcome.timeline}\nkept in {outcome.folder}\n"
        f"play it again: make faults WORLD={world} SEED={outcome.plan.seed}\n"
    )


def page(values: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"# World {values['world']}, measured",
        f"Written by `make faults WORLD={values['world']}`; what it does: docs/campaign.md.",
        _table(
            ("", ""),
            [
                ("tree (`git rev-parse HEAD:airflow_kafka_eos`)", values["tree"]),
                ("runs", f"{values['runs']} of {values['meant runs']}"),
                ("minutes", values["minutes"]),
                ("violations", values["violations"] or "none"),
                ("failed seeds", values["failed seeds"] or "none"),
                ("seconds of a run, median and largest", tuple(values["seconds of a run"].values())),
            ],
        ),
        "## Figures of a run",
        _table(
            ("", "median", "largest", "all together"),
            [(name, one["median"], one["largest"], one["sum"]) for name, one in values["figures"].items()],
        ),
        "## Strikes",
        _table(("what", "where", "meant", "fell"), [tuple(one.values()) for one in values["strikes"]]),
        "## Runs by dimension",
        _table(
            ("dimension", "runs"),
            [(n, ", ".join(f"{v}: {c}" for v, c in found.items())) for n, found in values["dimensions"].items()],
        ),
    ]
    return "\n\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, tuple("---" for _ in head), *rows))


class Hands:
    """Some runs side by side, each hand with a broker of its own: a strike at one touches no other run."""

    def __init__(self, world: World, environment: Environment, on_outcome: Callable[[Outcome], None]) -> None:
        self._world, self._environment, self._on_outcome = world, environment, on_outcome
        self._lock = threading.Lock()
        self._until = float("inf")

    def stop(self) -> None:
        """What is under way comes to its end, and nothing more begins. Callable from a signal's handler."""
        self._until = 0.0

    def play(self, plans: list[Any], hands: int, until: float = float("inf")) -> None:
        """All of them, unless it is stopped.

        :param until: monotonic seconds; no run begins behind it.
        """
        self._until = min(self._until, until)
        left = iter(plans)
        with ThreadPoolExecutor(hands) as pool:
            for done in [pool.submit(self._hand, left) for _ in range(min(hands, len(plans)))]:
                done.result()

    def _next(self, left: Iterator[Any]) -> Any | None:
        with self._lock:
            return None if time.monotonic() > self._until else next(left, None)

    def _hand(self, left: Iterator[Any]) -> None:
        plan = self._next(left)
        while plan is not None:
            with cluster(KAFKA) as kafka, self._world.hand() as hand:
                for _ in range(RUNS_OF_A_CLUSTER):
                    if plan is None:
                        break
                    outcome = self._world.play(plan, kafka, self._environment, hand)
                    with self._lock:
                        self._on_outcome(outcome)
                    plan = self._next(left)


def fails(world: World, plan: Any, environment: Environment) -> bool:
    """Whether one of some runs goes wrong."""
    found: list[Outcome] = []
    for _ in range(TRIES):
        Hands(world, environment, found.append).play([plan], 1)
        if found[-1].violations:
            return True
    return False


def main(environ: Mapping[str, str], stopped_by_signals: Callable[..., Any]) -> int:
    """:param stopped_by_signals: of the campaign's command."""
    name = environ["WORLD"]
    if name not in WORLDS:
        print(f"WORLD={name} is none of {', '.join(WORLDS)}", flush=True)
        return 2
    world = WORLDS[name]
    plans = chosen(environ, world, random.Random())
    print(f"{len(plans)} runs of world {name}, seeds {plans[0].seed} to {plans[-1].seed}", flush=True)
    tally, home = Tally(name, len(plans)), Path(tempfile.mkdtemp(prefix="kafka-eos-worlds-"))

    def note(outcome: Outcome) -> None:
        tally.add(outcome)
        print(told(outcome, tally.runs, name), flush=True)
        if not outcome.violations:
            shutil.rmtree(outcome.folder, ignore_errors=True)

    with Environment(home) as environment:
        hands = Hands(world, environment, note)
        try:
            until = time.monotonic() + float(environ.get("MINUTES", "inf")) * 60
            with stopped_by_signals(hands.stop) as came:
                hands.play(plans, int(environ.get("HANDS", "2")), until)
            if environ.get("SHRINK") == "1" and tally.failed:
                plan = plans[0]
                while less := next((p for p in world.smaller(plan) if fails(world, p, environment)), None):
                    plan = less
                print(f"the smallest that still goes wrong: {plan.to_json()}", flush=True)
        finally:
            print(tally.summary(), flush=True)
            if environ.get("OUT") and tally.runs:
                out, values = Path(environ["OUT"]), tally.as_values()
                out.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
                out.write_text(page(values), encoding="utf-8")
    if not tally.failed:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if tally.failed or not tally.runs or came.is_set() else 0
