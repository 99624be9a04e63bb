"""The data source, with a death of the whole driver at a step: JVM, Python and the worker itself, by SIGKILL.

``STREAMS_KILL`` names ``<step> <batch>``; a file ``STREAMS_KILLED`` is made before, so that the next run lives. Spark
imports this module in each Python process of the driver: there, it puts itself before what is called at that step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from airflow_kafka_eos.protocol.stages import batches, commit
from airflow_kafka_eos.streams import KafkaEosStreams
from airflow_kafka_eos.streams import driver as driver_

#: step -> the module and the name of what is called; the death comes before it, or behind it
STEPS: dict[str, tuple[Any, str, bool]] = {
    "before the begin": (batches, "begin_batch", False),
    "behind the begin": (batches, "begin_batch", True),
    "before it is reported": (batches, "record_prepared", False),
    "before the decision": (batches, "decide", False),
    "behind the decision": (batches, "decide", True),
    "behind the commit": (batches, "commit", True),
    "in the sweep": (batches, "sweep_earlier", False),
}
BETWEEN_ENDS = "between two EndTxn"


class KillingStreams(KafkaEosStreams):
    pass


def die() -> None:
    """The daemon that this process was forked from, the JVM, and the Python that has started it."""
    Path(os.environ["STREAMS_KILLED"]).write_text("x")
    me = psutil.Process()
    jvm = next(p for p in me.parents() if "java" in p.name())
    for process in (jvm, *(p for p in jvm.parents() if "tests.streams.query" in p.cmdline())):
        process.send_signal(signal.SIGKILL)
    for process in me.parents():
        if "pyspark.daemon" in process.cmdline():
            process.send_signal(signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_due(batch: str) -> bool:
    return not Path(os.environ["STREAMS_KILLED"]).exists() and os.environ["STREAMS_KILL"].rpartition(" ")[2] == batch


def _dying(call: Callable[..., Any], behind: bool) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        texts = [str(a) for a in (*args, *kwargs.values())]
        wanted = os.environ["STREAMS_KILL"].rpartition(" ")[2]
        due = _is_due(wanted) and any(f"batch {wanted} of" in t or f"-{wanted}" in t.split(" ")[0] for t in texts)
        if due and not behind:
            die()
        answer = call(*args, **kwargs)
        if due:
            die()
        return answer

    return called


def _ends_one(self: Any, transactions: Any, verdict: Any) -> Any:
    """EndTxn for one of several, and no more."""
    every = list(transactions)
    wanted = os.environ["STREAMS_KILL"].rpartition(" ")[2]
    if len(every) > 1 and f"-{wanted}." in every[0].transactional_id + "." or _is_due(wanted) and len(every) > 1:
        _end_many(self, every[:1], verdict)
        die()
    return _end_many(self, every, verdict)


_step = os.environ.get("STREAMS_KILL", "").rpartition(" ")[0]
if _step in STEPS:
    module, name, behind = STEPS[_step]
    setattr(module, name, _dying(getattr(module, name), behind))
elif _step == BETWEEN_ENDS:
    from airflow_kafka_eos.kafka.admin.coordinator import Coordinator

    _end_many = Coordinator.end_many
    Coordinator.end_many = _ends_one  # type: ignore[method-assign]
