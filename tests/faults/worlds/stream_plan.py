"""What happens in a stream world: by its seed, always the same. No I/O."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from tests.faults.worlds.stream_steps import ABORTING, BETWEEN, DECIDED, EVERY, OF_A_TASK

#: a life by Spark costs ten seconds of a quiet machine's
MOST_STRIKES, MOST_BY_SPARK = 4, 2
#: so many come at least: the source grows until the last strike has fallen
FEWEST_FILES, MOST_FILES = 4, 10


#: seeds from here on run by Spark itself, all others by forks (:mod:`.forked_engine`)
BY_SPARK = 3_000_000_000
FORKS, SPARK = "forks", "spark"


class Kind(str, Enum):
    """What strikes."""

    #: SIGKILL of the JVM, its Python processes and who has started it
    DRIVER_KILL = "driver_kill"
    #: of the JVM alone: what it has started notices by itself, and may go on for a moment
    JVM_KILL = "jvm_kill"
    #: of one Python worker of an executor
    WORKER_KILL = "worker_kill"
    BROKER_KILL = "broker_kill"
    #: a lock on SQLite's file that somebody else holds; of PostgreSQL its address, which nobody answers at
    LEDGER_AWAY = "ledger_away"
    #: SIGKILL of PostgreSQL
    LEDGER_KILL = "ledger_kill"
    #: on the same checkpoint; the first one hangs meanwhile, where there is a step
    SECOND_DRIVER = "second_driver"
    MAINTENANCE = "maintenance"
    #: ``airflow-kafka-eos cleanup`` of the newest batch
    CLEANUP = "cleanup"
    #: the driver dies, and the checkpoint is moved; a person says so, behind the first refusal
    CHECKPOINT_MOVED = "checkpoint_moved"
    #: the driver dies, and its checkpoint is put back as it was a while ago
    CHECKPOINT_OLDER = "checkpoint_older"
    #: the driver dies, and the ledger is saved; the next one dies when more is decided, and it is put back
    LEDGER_RESTORED = "ledger_restored"


#: what happens while no driver lives
BETWEEN_LIVES = (Kind.CHECKPOINT_MOVED, Kind.CHECKPOINT_OLDER, Kind.LEDGER_RESTORED)
_WEIGHTS = {
    Kind.DRIVER_KILL: 10,
    Kind.JVM_KILL: 5,
    Kind.WORKER_KILL: 3,
    Kind.BROKER_KILL: 3,
    Kind.LEDGER_AWAY: 3,
    Kind.LEDGER_KILL: 1,
    Kind.SECOND_DRIVER: 3,
    Kind.MAINTENANCE: 2,
    Kind.CLEANUP: 2,
    Kind.CHECKPOINT_MOVED: 1,
    Kind.CHECKPOINT_OLDER: 1.5,
}
#: so many strikes of a plan are of this kind instead, by dice of its own: other seeds are what they were before it
_RESTORED, _RESTORED_SHARE = Kind.LEDGER_RESTORED, 0.05


_BY_SPARK_SINKS = ("format", "each", "both"), (5, 3, 2)
_FORKS_SINKS = ("format", "two"), (1, 1)


@dataclass(frozen=True)
class Strike:
    """
    :param step: of :data:`.stream_steps.EVERY`; empty: at a moment.
    :param nth: it falls when the step is passed for the so-manyth time since it was armed.
    :param delay_ms: without a step: so long after the driver was seen to run.
    :param seconds: how long an outage lasts.
    :param then: of a ledger that is restored: at which step the driver dies whose work it loses; empty: at a moment.
    """

    kind: Kind
    step: str = ""
    nth: int = 1
    delay_ms: int = 0
    seconds: float = 0.0
    then: str = ""

    @property
    def where(self) -> str:
        return self.step or "at a moment"


@dataclass(frozen=True)
class StreamPlan:
    """
    :param engine: ``spark``; or ``forks``, whose source is files, and whose queries have no foreachBatch.
    :param sinks: ``format``, ``each`` (foreachBatch) or ``both``: two queries of one source in
        one driver; ``two``: of ``format``.
    :param source: ``files`` or ``kafka``.
    :param tasks: of a batch's write; 0: as the source has them.
    :param runs_once: Spark's settings let no stage run twice, so that slots are free at once.
    """

    seed: int
    engine: str
    sinks: str
    source: str
    ledger: str
    naming: str
    two_phase: str
    writer: str
    partitions: int
    tasks: int
    cores: int
    files: int
    rows: int
    files_per_batch: int
    pause_ms: int
    available_now: bool
    runs_once: bool
    strikes: tuple[Strike, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamPlan:
        found: dict[str, Any] = json.loads(text)
        strikes = tuple(Strike(**one | {"kind": Kind(one["kind"])}) for one in found["strikes"])
        return cls(**found | {"strikes": strikes})

    @property
    def dimensions(self) -> dict[str, str]:
        return {
            "by": self.engine,
            "sink": self.sinks,
            "source": self.source,
            "ledger": self.ledger,
            "ids": self.naming,
            "two-phase commit": self.two_phase,
            "writer": self.writer,
            "partitions": str(self.partitions),
            "tasks": str(self.tasks or "as the source"),
            "trigger": "availableNow, again and again" if self.available_now else "as fast as it can",
            "a stage may run again": "no" if self.runs_once else "yes",
        }


def generate(seed: int) -> StreamPlan:
    dice = random.Random(f"streams {seed}")
    engine = SPARK if seed >= BY_SPARK else FORKS
    ledger = dice.choice(("sqlite", "postgresql"))
    most = MOST_BY_SPARK if engine == SPARK else MOST_STRIKES
    restoring = random.Random(f"streams {seed} restored")
    strikes = tuple(_maybe_restored(restoring, _strike(dice, ledger)) for _ in range(dice.randint(1, most)))
    plan = StreamPlan(
        seed=seed,
        engine=engine,
        sinks=dice.choices(*(_BY_SPARK_SINKS if engine == SPARK else _FORKS_SINKS))[0],
        source=dice.choices(("files", "kafka"), (4, 1))[0] if engine == SPARK else "files",
        ledger=ledger,
        naming=dice.choice(("pooling", "pooling", "incrementing")),
        two_phase=dice.choice(("off", "required")),
        writer=dice.choices(("arrow", "confluent"), (3, 1))[0],
        partitions=dice.choice((1, 2, 3, 5)),
        tasks=dice.choice((0, 2, 3)),
        cores=dice.choice((1, 2)),
        files=dice.randint(FEWEST_FILES, MOST_FILES),
        rows=dice.choice((5, 40, 200)),
        files_per_batch=dice.randint(1, 3),
        pause_ms=dice.choice((100, 300, 600)),
        available_now=dice.random() < 0.25 and engine == SPARK,
        runs_once=dice.random() < 0.6,
        strikes=strikes,
    )
    # librdkafka cannot do it
    return replace(plan, two_phase="off") if plan.writer == "confluent" else plan


def _strike(dice: random.Random, ledger: str) -> Strike:
    kinds = [k for k in _WEIGHTS if k is not Kind.LEDGER_KILL or ledger == "postgresql"]
    kind = dice.choices(kinds, [_WEIGHTS[k] for k in kinds])[0]
    seconds = {Kind.BROKER_KILL: dice.uniform(0.1, 3), Kind.SECOND_DRIVER: dice.uniform(2, 6)}.get(
        kind, dice.uniform(0.5, 4)
    )
    if dice.random() < 0.25:
        return Strike(kind, delay_ms=dice.randint(0, 3000), seconds=seconds)
    # what a checkpoint suffers, it suffers between lives: the death is at a step all the same
    step = dice.choice(OF_A_TASK if kind is Kind.WORKER_KILL else EVERY)
    return Strike(kind, step, 1 if step == ABORTING else dice.choice((1, 1, 2)), seconds=seconds)


def _maybe_restored(dice: random.Random, strike: Strike) -> Strike:
    if dice.random() >= _RESTORED_SHARE:
        return strike
    # a driver that goes on has nothing to abort; a batch that is decided and not whole gives a person most to do
    steps = [step for step in EVERY if step != ABORTING]
    return replace(strike, kind=_RESTORED, then=dice.choice(("", *steps, DECIDED, BETWEEN, BETWEEN)))


def smaller(plan: StreamPlan) -> Iterator[StreamPlan]:
    """Each a step smaller."""
    for n in range(len(plan.strikes)):
        yield replace(plan, strikes=plan.strikes[:n] + plan.strikes[n + 1 :])
    if plan.sinks in ("both", "two"):
        yield replace(plan, sinks="format")
    if plan.sinks == "both":
        yield replace(plan, sinks="each")
    if plan.source == "kafka":
        yield replace(plan, source="files")
    if plan.rows > 5:
        yield replace(plan, rows=5)
    if plan.partitions > 2:
        yield replace(plan, partitions=2)
