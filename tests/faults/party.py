"""What one process of a run does from its begin to its end. Imported by the zygote, run in its forks."""

from __future__ import annotations

import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_kafka_eos.errors import KafkaEosError, TerminalError
from tests.faults import operating, sparking
from tests.faults.accounts import BEGINS, DONE, FAILS, UNEXPECTED
from tests.faults.operating import FailedError, FinalError
from tests.faults.plan import Ended, Order, Plan
from tests.faults.scenario import Role
from tests.faults.sparking import SparkError
from tests.faults.striking import SIDES, Striker, TakenForFailed
from tests.faults.timeline import Timeline

Work = Callable[[Plan, Order, Timeline], Any]

#: how parties fail that must
OWN = (FailedError, FinalError, SparkError, TakenForFailed)

WORK: dict[str, Work] = {
    Role.BEGIN.value: operating.begin,
    Role.PREPARE.value: operating.prepare,
    Role.DECIDE.value: operating.decide,
    Role.COMMIT.value: operating.commit,
    Role.CLEANUP.value: operating.cleanup,
    Role.LOADED.value: operating.loaded,
    Role.MAINTENANCE.value: operating.maintenance,
    Role.DRIVER.value: sparking.driver,
    Role.TASK.value: sparking.task,
}


def run(order: Order) -> Ended:
    """Do it, and say how it ended."""
    plan = Plan.read(order.folder)
    timeline = Timeline(order.folder, order.party)
    timeline.log(BEGINS, role=order.role, load=order.load, limit_s=order.limit_s)
    _log_to(Path(order.folder) / "log.txt", order.party)
    _watch_threads(timeline)
    _redirect(plan.redirects.get(SIDES[order.role], {}))
    operating.note_decisions(timeline)
    striker = Striker(plan, order, timeline)
    try:
        striker.arm()
        answer = WORK[order.role](plan, order, timeline)
        if striker.fails():
            raise TakenForFailed("after its work")
    except BaseException as e:
        text = f"{type(e).__name__}: {e}"
        expected = is_expected(e)
        if not expected:
            text += "\n" + traceback.format_exc()
        final = isinstance(e, FinalError | TerminalError)
        # the end of a trace says what it is; one line of the timeline must stay one write
        timeline.log(FAILS, final=final, error=text if len(text) < 3000 else text[:500] + " … " + text[-2500:])
        if not expected:
            timeline.log(UNEXPECTED, kind=type(e).__name__, error=traceback.format_exc()[-2500:])
        return Ended(error=text, final=final)
    timeline.log(DONE, role=order.role, load=order.load, answer=answer, cpu_s=round(time.process_time(), 3))
    return Ended(answer=answer)


def is_expected(e: BaseException) -> bool:
    """Whether a process may fail so: with an error of the package's, or as the campaign wants it to."""
    return isinstance(e, (KafkaEosError, KeyboardInterrupt, SystemExit, *OWN))


def _watch_threads(timeline: Timeline) -> None:
    """Nobody hears of a thread that dies, else."""

    def note(died: threading.ExceptHookArgs) -> None:
        trace = "".join(traceback.format_exception(died.exc_type, died.exc_value, died.exc_traceback))
        name = None if died.thread is None else died.thread.name
        timeline.log(UNEXPECTED, kind=died.exc_type.__name__, thread=name, error=trace[-2500:])

    threading.excepthook = note


def _log_to(file: Path, party: str) -> None:
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {party} %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("airflow_kafka_eos").setLevel(logging.INFO)


def _redirect(addresses: Mapping[str, str]) -> None:
    """Connections to a broker go through its proxy. librdkafka's sockets are its own, and go straight."""
    if not addresses:
        return
    through = {_pair(broker): _pair(proxy) for broker, proxy in addresses.items()}

    def other(address: Any) -> Any:
        return through.get(tuple(address[:2]), address) if isinstance(address, tuple) else address

    class Redirected(socket.socket):
        def connect(self, address: Any) -> None:
            super().connect(other(address))

        def connect_ex(self, address: Any) -> int:
            return super().connect_ex(other(address))

    socket.socket = Redirected  # type: ignore[misc]


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
