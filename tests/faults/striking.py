"""Faults that strike inside a process: killed or stopped at a step or after a while, with another clock, a full disk.

Each fault strikes once in a run: the first process that comes by takes it, at the moment when it takes effect. What the
process alone cannot tell (a broker's abort), :mod:`.injecting` finds out.
"""

from __future__ import annotations

import datetime
import functools
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from airflow_kafka_eos.ledger import database
from airflow_kafka_eos.ledger.database import Database
from tests.crashes.steps import Step, When
from tests.faults.places import BY_NAME
from tests.faults.plan import Order, Plan
from tests.faults.scenario import (
    BROKER_KINDS,
    LEDGER_SIDE,
    PROCESS_KINDS,
    TIMEOUT_KINDS,
    WRITER_SIDE,
    WRITERS,
    Fault,
    Kind,
    Role,
)
from tests.faults.timeline import Timeline

PACKAGE = "airflow_kafka_eos"
AFTER_DECISION = "decide: after decide_commit is committed"
#: brokers look for timed out transactions once a second
TIMED_OUT_S = 2.5
#: a process waits no longer than that for brokers to be struck
CALL_S = 2.0
#: Whoever strikes this process holds it, and at the end its main thread, for good: a fault that is taken takes effect.
_STRIKING = threading.Lock()


class TakenForFailed(Exception):
    """The work of a task is done, and whoever runs it takes it for failed all the same."""


class Terminated(SystemExit):
    """SIGTERM has come. No Exception: what catches errors must not catch it."""


class Striker:
    """What may happen to one process."""

    def __init__(self, plan: Plan, order: Order, timeline: Timeline) -> None:
        self._plan, self._order, self._timeline = plan, order, timeline

    def arm(self) -> None:
        """Plant what is meant for a process of this role and load."""
        for number, fault in enumerate(self._plan.scenario.faults):
            if fault.kind is Kind.LEDGER_LOCKED:
                self._plant_lock(number, fault)
            elif fault.kind in BROKER_KINDS:
                self._plant_call(number, fault)
            elif fault.load == self._order.load and fault.target == self._order.role:
                self._plant(number, fault)

    def fails(self) -> bool:
        """Whether a task that has done its work is taken for failed all the same."""
        return any(
            fault.kind is Kind.RETRY
            and fault.load == self._order.load
            and fault.target == self._order.role
            and self.take(number, fault)
            for number, fault in enumerate(self._plan.scenario.faults)
        )

    def take(self, number: int, fault: Fault) -> bool:
        return take(self._plan.folder, number, fault, self._timeline)

    def _plant(self, number: int, fault: Fault) -> None:
        if fault.kind is Kind.CLOCK_JUMP:
            if self.take(number, fault):
                shift_clock(fault.seconds)
        elif fault.kind is Kind.LEDGER_FULL:
            fill_ledger(
                lambda: not struck(self._plan.folder, number), lambda: self.take(number, fault), fault.seconds
            )
        elif fault.kind in TIMEOUT_KINDS:
            self._outlast(number, fault)
        elif fault.kind in PROCESS_KINDS:
            strike = functools.partial(self._strike, number, fault)
            if fault.moment.step is not None:
                plant(BY_NAME[fault.moment.step].step, strike)
            else:
                timer = threading.Timer(fault.moment.delay_ms / 1000, strike)
                timer.daemon = True
                timer.start()

    def _plant_lock(self, number: int, fault: Fault) -> None:
        """Whoever wants to write while the lock is held tells so, and waits."""
        begin = database._begin_sqlite

        def begun(connection: Any) -> None:
            is_write = not connection.get_execution_options().get(database._READ, False)
            if is_write and held_file(self._plan.folder, number).exists():
                self.take(number, fault)
            begin(connection)

        database._begin_sqlite = begun

    def _plant_call(self, number: int, fault: Fault) -> None:
        """Where brokers are struck at a step, whoever comes by says so, and waits until they are."""
        step = fault.moment.step
        if step is None or fault.load != self._order.load or self._order.role not in BY_NAME[step].roles:
            return

        def strike() -> None:
            if _first(called_file(self._plan.folder, number)):
                self._timeline.log("brokers' moment", step=step)
                give_up = time.monotonic() + CALL_S
                while not struck(self._plan.folder, number) and time.monotonic() < give_up:
                    time.sleep(0.002)

        plant(BY_NAME[step].step, strike)

    def _outlast(self, number: int, fault: Fault) -> None:
        """Sleep until the broker has aborted what is open. Whether there was something is for others to see."""
        seconds = outlasting_s(self._plan)

        def strike() -> None:
            if _first(asleep_file(self._plan.folder, number)):
                self._timeline.log("sleeps", kind=fault.kind.value, seconds=seconds)
                self._stop(seconds)

        if fault.kind is Kind.TIMEOUT_BEFORE_DECISION:
            strike()
        else:
            plant(BY_NAME[AFTER_DECISION].step, strike)

    def _strike(self, number: int, fault: Fault) -> None:
        with _STRIKING:
            if not self.take(number, fault):
                return
            if fault.kind is Kind.SIGKILL:
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind is Kind.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                self._stop(fault.seconds)

    def _stop(self, seconds: float) -> None:
        (Path(self._plan.folder) / f"pause-{os.getpid()}").write_text(str(seconds))
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.02)  # the signal may take a moment to arrive at every thread
        self._timeline.log("goes on", after=seconds)


def take(folder: str, number: int, fault: Fault, timeline: Timeline) -> bool:
    """The fault takes effect. True for the first who comes."""
    if not _first(Path(folder) / f"fault-{number}"):
        return False
    timeline.log(f"FAULT {number}", kind=fault.kind.value, at=fault.moment.step or "", seconds=fault.seconds)
    return True


def end_strikes() -> None:
    """A process that has done its work waits for a strike that has begun, and takes no other."""
    _STRIKING.acquire()


def struck(folder: str, number: int) -> bool:
    """Whether a fault has taken effect: one that never does proves nothing."""
    return (Path(folder) / f"fault-{number}").exists()


def held_file(folder: str, number: int) -> Path:
    """There while somebody holds the ledger's write lock."""
    return Path(folder) / f"held-{number}"


def asleep_file(folder: str, number: int) -> Path:
    """There once a process sleeps until its transactions time out."""
    return Path(folder) / f"asleep-{number}"


def called_file(folder: str, number: int) -> Path:
    """There once a process has come to the step at which brokers are struck."""
    return Path(folder) / f"called-{number}"


def outlasting_s(plan: Plan) -> float:
    return plan.scenario.hold_ms / 1000 + TIMED_OUT_S


def _first(file: Path) -> bool:
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def obey_sigterm() -> None:
    """Die of it in good order, as Python's main threads under Airflow, Spark and Kubernetes are meant to: what was
    opened is closed on the way out, and the exit is the signal's (see :func:`die_of_sigterm`)."""

    def terminated(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: a second one would cut the first one's way out
        global _is_terminated
        _is_terminated = True
        raise Terminated(128 + number)

    signal.signal(signal.SIGTERM, terminated)


_is_terminated = False


def die_of_sigterm() -> None:
    """Where it has come: whoever waits for the process learns which signal ended it."""
    if _is_terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def plant(step: Step, strike: Callable[[], None]) -> None:
    """Replace the step's function by one that strikes at its n-th call."""
    module, _, path = step.target.partition(":")
    *parents, name = path.split(".")
    owner: Any = functools.reduce(getattr, parents, import_module(module))
    original = getattr(owner, name)
    calls = 0

    @functools.wraps(original)
    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls == step.nth
        if mine and step.when is When.BEFORE:
            strike()
        if mine and step.when is When.WRITTEN:
            _strike_before_commit(strike)
        answer = original(*arguments, **options)
        if mine and step.when is When.AFTER:
            strike()
        return answer

    setattr(owner, name, counted)


def _strike_before_commit(strike: Callable[[], None]) -> None:
    write = Database.write

    def written(self: Database, work: Callable[[Any], Any]) -> Any:
        def whole(connection: Any) -> Any:
            done = work(connection)
            strike()
            return done

        Database.write = write  # type: ignore[method-assign]
        return write(self, whole)

    Database.write = written  # type: ignore[method-assign]


def shift_clock(seconds: float) -> None:
    """``time`` and ``datetime`` of this process. A module's own name for ``datetime`` is replaced where the module is
    the package's; what imports it later gets the shifted one too."""
    wall, wall_ns, real = time.time, time.time_ns, datetime.datetime
    time.time = lambda: wall() + seconds
    time.time_ns = lambda: wall_ns() + int(seconds * 1e9)

    class IsReal(type):
        def __instancecheck__(cls, one: object) -> bool:
            return isinstance(one, real)

    class Shifted(real, metaclass=IsReal):  # type: ignore[valid-type, misc]
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return real.now(tz) + datetime.timedelta(seconds=seconds)

        @classmethod
        def utcnow(cls) -> datetime.datetime:
            return real.utcnow() + datetime.timedelta(seconds=seconds)

    datetime.datetime = Shifted  # type: ignore[misc]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE and vars(module).get("datetime") is real:
            module.datetime = Shifted  # type: ignore[attr-defined]


def fill_ledger(is_due: Callable[[], bool], took: Callable[[], object], seconds: float) -> Callable[..., None]:
    """From this process's next write on there is no room: SQLite itself says so, with all that it does then.

    Few writes need a page more, so that a limit alone strikes nobody. Here a table that has no room either is made
    right before the write, in the same transaction: SQLite's error about it comes in the write's place.

    :param is_due: asked at each write until the first error; called at that one: ``took``.
    :param seconds: from the first error on, until there is room again. A sensor waits for room.
    :returns: the listener, so that a test may take it away.
    """
    until: float | None = None

    def execute(cursor: Any, statement: str, *rest: Any) -> None:
        nonlocal until
        is_write = statement.lstrip().upper().startswith(("INSERT", "UPDATE"))
        if not is_write or not isinstance(cursor, sqlite3.Cursor):
            return
        if not (is_due() if until is None else time.monotonic() < until):
            return
        names = ("page_size", "freelist_count", "page_count")
        size, free, pages = (cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        cursor.execute(f"PRAGMA max_page_count = {pages}")
        try:
            cursor.execute(f"CREATE TABLE filler AS SELECT zeroblob({(free + 2) * size})")
        except sqlite3.OperationalError as e:
            if e.sqlite_errorcode == sqlite3.SQLITE_FULL and until is None:
                until = time.monotonic() + seconds
                took()
            raise

    event.listen(Engine, "do_execute", execute)
    return execute


#: whose connections a proxy stands in; see :mod:`.proxy`
SIDES = {role.value: WRITER_SIDE if role in WRITERS else LEDGER_SIDE for role in Role}
