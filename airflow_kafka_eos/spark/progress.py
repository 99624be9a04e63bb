"""What prepare's log shows while Spark works: tasks, records and bytes, at a calm pace.

Nothing is counted per record, and nothing is asked of a broker. Each task that Spark accepts says once how much it has
written, in an accumulator that travels with its result; how many tasks there are and run, Spark's status tracker knows.
So the records of a task show when it is done, never before, and those of an attempt that failed never.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.accumulators import AccumulatorParam

from airflow_kafka_eos.amounts import duration_text, size_text

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_log = logging.getLogger(__name__)

#: (seconds since the beginning, pause until the next line): often at first, then seldom
_PACE = ((60.0, 10.0), (600.0, 30.0))
_SELDOM_S = 120.0


class Written(NamedTuple):
    """What accepted tasks have written. ``bytes`` counts keys, values and headers before compression."""

    tasks: int = 0
    records: int = 0
    bytes: int = 0


class _Sum(AccumulatorParam[Written]):
    def zero(self, value: Written) -> Written:
        return Written()

    def addInPlace(self, value1: Written, value2: Written) -> Written:
        return Written(*(a + b for a, b in zip(value1, value2, strict=True)))


def counter(context: SparkContext) -> Accumulator[Written]:
    """What tasks add to; the driver reads it while they run."""
    return context.accumulator(Written(), _Sum())


@dataclass(frozen=True)
class Tasks:
    """Of the Spark stages that are at work. ``failed``: attempts, which Spark may make again."""

    stages: tuple[int, ...] = ()
    done: int = 0
    total: int = 0
    running: int = 0
    failed: int = 0


def tasks_of(stages: Iterable[Any]) -> Tasks:
    """The sum of some stages, as ``StatusTracker.getStageInfo`` shows them; None is one that it has forgotten."""
    known = sorted((s for s in stages if s is not None), key=lambda s: s.stageId)
    return Tasks(
        tuple(s.stageId for s in known),
        sum(s.numCompletedTasks for s in known),
        sum(s.numTasks for s in known),
        sum(s.numActiveTasks for s in known),
        sum(s.numFailedTasks for s in known),
    )


def line(tasks: Tasks, written: Written, seconds: float) -> str:
    """One line of progress, behind the load's name. No I/O."""
    if not tasks.stages:
        doing = "no Spark stage is at work"
    else:
        doing = f"{tasks.done} of {tasks.total} tasks done"
        if tasks.failed:
            doing += f", {tasks.failed} failed"
        doing += f", {tasks.running or 'none'} running"
    amount = f"{written.records:,} records, {size_text(written.bytes)}" if written.tasks else "nothing written yet"
    stages = ", ".join(map(str, tasks.stages))
    where = f"stage{'s' if len(tasks.stages) > 1 else ''} {stages}, " if stages else ""
    return f"{doing}, {amount} ({where}{duration_text(seconds)})"


def pause_s(seconds: float) -> float:
    """How long to wait for the next line, so long after the beginning."""
    return next((pause for until, pause in _PACE if seconds < until), _SELDOM_S)


class Progress:
    """Prints a line now and then, from a thread, until it is left.

    :param name: the load and its attempt.
    :param say: prints a line.
    """

    def __init__(
        self, context: SparkContext, written: Accumulator[Written], name: str, say: Callable[[str], object]
    ) -> None:
        self._context = context
        self._written = written
        self._name = name
        self._say = say
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()  # it is asking Spark, at most: no line may come behind the last one

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def _tell(self) -> None:
        while not self._over.wait(pause_s(self.seconds)):
            try:
                tracker = self._context.statusTracker()
                tasks = tasks_of([tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()])
                self._say(f"load {self._name}: {line(tasks, self._written.value, self.seconds)}")
            except Exception as e:
                # what is only for people to read never ends a load; a stopped Spark, or a gateway that is gone
                _log.debug("no progress to show: %s", e)
