"""What prepare's log shows while Spark works: tasks, records and bytes.

Nothing is counted per record, and nothing is asked of a broker. Each task that Spark accepts says once how much it has
written, in an accumulator that travels with its result; how many tasks there are and run, Spark's status tracker knows.
So the records of a task show when it is done, never before, and those of an attempt that failed never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.accumulators import AccumulatorParam

from airflow_kafka_eos.amounts import duration_text, size_text
from airflow_kafka_eos.spark.pace import Pace

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


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


class Progress(Pace):
    """Prints a line now and then, from a thread, until it is left."""

    def __init__(
        self, context: SparkContext, written: Accumulator[Written], name: str, say: Callable[[str], object]
    ) -> None:
        super().__init__(name, self._line, say)
        self._context = context
        self._written = written

    def _line(self, seconds: float) -> str:
        tracker = self._context.statusTracker()
        tasks = tasks_of([tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()])
        return line(tasks, self._written.value, seconds)
