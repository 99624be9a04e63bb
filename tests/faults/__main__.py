"""``python -m tests.faults``: the fault campaign. What it takes is in the environment, as with ``make bench``.

| variable | meaning | default |
| --- | --- | --- |
| ``WORLD`` | ``streams`` or ``cursors``: runs of another kind (``tests/faults/worlds/command.py``) | loads |
| ``RUNS`` | how many runs | 20 |
| ``SEED`` | seeds, as ``7,1000..1999``; then ``RUNS`` does not count | fresh ones |
| ``SCENARIO`` | a file with one scenario as JSON, in a seed's place | none |
| ``SHRINK`` | 1: of a run that goes wrong, find the smallest that still does; for one seed | 0 |
| ``LARGE`` | so many runs of a million records over three brokers besides | 0 |
| ``REAL`` | so many runs through Airflow and Spark themselves besides | one for 20 fresh runs |
| ``ENGINE`` | what prepares in those: ``spark-submit``, ``arrow``, ``connect`` | spark-submit |
| ``CLUSTER`` | runs on this kind only, as ``4.4x1``: version and brokers | all kinds |
| ``MINUTES`` | no run begins later | no limit |
| ``HANDS`` | runs side by side | 3 |
| ``OUT`` | a page to write, and a ``.json`` beside it | nothing is written |

Exit code 1 when a run was not as it must be: its scenario, its timeline and the command that plays it again are shown;
and after SIGINT and SIGTERM, which let the runs under way come to their end, and write the page.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import FrameType

from tests.faults.campaign import Campaign
from tests.faults.environment import Environment
from tests.faults.generating import FRESH, LARGE, REAL, generate
from tests.faults.report import Tally, told_of, write
from tests.faults.result import Result
from tests.faults.scenario import ENGINES, Scenario
from tests.faults.shrinking import fails, shrink


def chosen(environ: Mapping[str, str], dice: random.Random) -> list[Scenario]:
    """What to play."""
    if environ.get("SCENARIO"):
        return [Scenario.from_json(Path(environ["SCENARIO"]).read_text(encoding="utf-8"))]
    text, kind = environ.get("SEED", ""), environ.get("CLUSTER", "")
    parts = [part.partition("..") for part in text.split(",") if part]
    named = [seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1)]
    seeds = named if text else count(dice.choice(FRESH))
    runs = int(environ.get("RUNS", "20"))
    real = int(environ.get("REAL", "0" if text or kind else str(runs // 20)))
    engine = environ.get("ENGINE", ENGINES[0])
    if engine not in ENGINES:
        raise SystemExit(f"ENGINE={engine} is none of {', '.join(ENGINES)}")
    every = (by(engine, generate(seed)) for seed in seeds)
    some = (s for s in every if kind in ("", "x".join(map(str, s.cluster))))
    large = [generate(LARGE + dice.randrange(REAL - LARGE)) for _ in range(int(environ.get("LARGE", "0")))]
    large += [by(engine, generate(REAL + dice.randrange(REAL))) for _ in range(real)]
    return large + list(some if text else islice(some, runs))


def by(engine: str, scenario: Scenario) -> Scenario:
    """Prepared by that engine, where it goes through Airflow."""
    return replace(scenario, engine=engine) if scenario.seed >= REAL else scenario


def main(environ: Mapping[str, str]) -> int:
    if environ.get("WORLD"):
        from tests.faults.worlds import command

        return command.main(environ, stopped_by_signals)
    scenarios = chosen(environ, random.Random())
    print(f"{len(scenarios)} runs, seeds {scenarios[0].seed} to {scenarios[-1].seed}", flush=True)
    minutes = float(environ.get("MINUTES", "inf"))
    tally = Tally(len(scenarios))
    home = Path(tempfile.mkdtemp(prefix="kafka-eos-faults-"))

    def note(result: Result) -> None:
        tally.add(result)
        print(told_of(result, tally.runs), flush=True)

    with Environment(home) as environment:
        campaign = Campaign(
            environment,
            note,
            side_by_side=int(environ.get("HANDS", "3")),
            until=time.monotonic() + minutes * 60,
        )
        try:
            with stopped_by_signals(campaign.stop) as came:
                campaign.play(scenarios)
            if environ.get("SHRINK") == "1" and tally.failed:
                smallest = shrink(scenarios[0], lambda s: fails(s, environment))
                print(f"the smallest that still goes wrong: {smallest.to_json()}", flush=True)
        finally:
            tally.end()
            print(tally.summary(), flush=True)
            if environ.get("OUT") and tally.runs:
                write(tally, Path(environ["OUT"]))
            elif environ.get("OUT"):
                print(f"no run has come to its end: {environ['OUT']} is left as it is", flush=True)
    if not tally.failed:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if tally.failed or not tally.runs or came.is_set() else 0


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """SIGTERM and SIGINT end a campaign in good order, with its page. A shell's background jobs are started with SIGINT
    ignored: a handler of our own is asked all the same.

    :returns: set when one has come.
    """
    came = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        came.set()
        print(f"{signal.Signals(number).name}: the runs that are under way come to their end", flush=True)
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main(os.environ))
