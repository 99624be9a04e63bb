"""The data source, with a death of the whole driver at a step: JVM, Python and the workers, by SIGKILL.

``STREAMS_KILL`` names ``<step>/<batch>``; the file ``STREAMS_KILLED`` is made before, so that the next run lives. Spark
imports this module in each Python process of the driver: there, it puts itself before what is called at that step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.micro_batch import MicroBatch, batch_of
from airflow_kafka_eos.protocol.stages import batches
from airflow_kafka_eos.streams.source import KafkaEosStreams

#: step -> the function of :mod:`.batches` that is called then, and whether the death comes behind it
STEPS = {
    "before the begin": ("begin_batch", False),
    "behind the begin": ("begin_batch", True),
    "before it is reported": ("record_prepared", False),
    "before the decision": ("ask", True),
    "behind the decision": ("commit", False),
    "behind the commit": ("commit", True),
}
BETWEEN_ENDS = "between two EndTxn"
EVERY = (*STEPS, BETWEEN_ENDS)


class KillingStreams(KafkaEosStreams):
    """Named by its module, so that Spark's Python processes import it."""


def _die() -> None:
    """The JVM, the Python that has started it, and the daemon that this process was forked from."""
    Path(os.environ["STREAMS_KILLED"]).touch()
    for process in psutil.Process().parents():
        command = process.cmdline()
        if "java" in process.name() or "pyspark.daemon" in command or "tests.streams.query" in command:
            process.send_signal(signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _number(given: tuple[Any, ...]) -> int:
    """Of the batch that a call is about."""
    for one in given:
        if isinstance(one, MicroBatch):
            return one.number
        load = one.attempt.load if isinstance(one, Manifest) else one
        if isinstance(load, LoadIdentity) and (found := batch_of(load)) is not None:
            return found[1]
    raise AssertionError(given)


def _put_between(step: str, wanted: int) -> None:
    name, behind = STEPS.get(step, ("ask", True))
    call: Callable[..., Any] = getattr(batches, name)

    def dying(*given: Any, **more: Any) -> Any:
        due = _number(given) == wanted
        if due and not behind:
            _die()
        answer = call(*given, **more)
        if due and step == BETWEEN_ENDS:
            Coordinator.end_many = _end_one_and_die  # type: ignore[method-assign]
        elif due:
            _die()
        return answer

    setattr(batches, name, dying)


_end_many = Coordinator.end_many


def _end_one_and_die(self: Coordinator, transactions: Any, verdict: Any) -> Any:
    every = list(transactions)
    assert len(every) > 1
    _end_many(self, every[:1], verdict)
    _die()


if not Path(os.environ.get("STREAMS_KILLED", "/")).exists():
    _put_between(os.environ["STREAMS_KILL"].partition("/")[0], int(os.environ["STREAMS_KILL"].partition("/")[2]))
