"""What strikes inside a process does what it says there, and counts only where it did."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import Engine, event

from airflow_kafka_eos.errors import LedgerUnavailableError
from airflow_kafka_eos.ledger import database
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from tests.faults import striking
from tests.faults.generating import generate
from tests.faults.plan import Order, Plan
from tests.faults.scenario import SHORT_HOLD_MS, Fault, Kind, LoadPlan, Moment, Role, Scenario
from tests.faults.striking import TIMED_OUT_S, Striker, fill_ledger, held_file, struck
from tests.faults.timeline import Timeline, events
from tests.faults.zygote import ROOT, ask, zygote


def plan_of(folder: Path, *faults: Fault, **changes: object) -> Plan:
    scenario: Scenario = replace(generate(1), loads=(LoadPlan(10, 10, 1),), faults=faults, **changes)  # type: ignore[arg-type]
    return Plan(scenario.to_json(), str(folder), "127.0.0.1:1", f"sqlite:///{folder}/ledger.db", "n", (("t",),))


def load(key: str) -> LoadIdentity:
    return LoadIdentity("n", "orders", key)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", upgrade=True) as opened:
        yield opened


def test_a_clock_that_jumps_is_the_ledgers_too() -> None:
    """In a process of its own: it does not jump back."""
    script = """
import time
from datetime import datetime as real, timedelta
import airflow_kafka_eos.ledger.queries as queries, airflow_kafka_eos.ledger.slots as slots
import airflow_kafka_eos.protocol.cleanup.namespace as leftovers
before, wall = real.now().astimezone(), time.time()
from tests.faults.striking import shift_clock
shift_clock(3600.0)
found = [real.fromtimestamp(time.time()).astimezone(), slots.datetime.now(slots.UTC),
         leftovers.datetime.now().astimezone(), leftovers.datetime.fromisoformat(queries.now())]
from datetime import datetime  # as a module does that is imported later
found.append(datetime.now().astimezone())
assert all(timedelta(minutes=59) < one - before < timedelta(minutes=61) for one in found), found
assert isinstance(before, datetime) and 3590 < time.time() - wall < 3610
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_full_ledger_is_sqlites_own_error_at_the_next_write_and_for_a_while(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, due, now = [], [False], SimpleNamespace(s=100.0)
    monkeypatch.setattr(striking, "time", SimpleNamespace(monotonic=lambda: now.s))
    execute = fill_ledger(lambda: due[0], lambda: taken.append(now.s), 0.5)
    try:
        ledger.begin(load("1"), owner="dag/run")
        assert taken == []
        due[0] = True
        assert ledger.attempts(load("1"))[0].number == 1  # who reads needs no room
        for _ in range(2):
            with pytest.raises(LedgerUnavailableError, match="is full"):
                ledger.begin(load("2"), owner="dag/run")
            now.s += 0.2
        assert len(taken) == 1
        now.s += 0.2
        ledger.begin(load("2"), owner="dag/run")
    finally:
        event.remove(Engine, "do_execute", execute)


def test_a_lock_has_struck_whom_it_kept_waiting(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_begin_sqlite", database._begin_sqlite)
    plan = plan_of(tmp_path, Fault(Kind.LEDGER_LOCKED, "database"))
    Striker(plan, Order(Role.COMMIT.value, 0, "dag/run", str(tmp_path)), Timeline(str(tmp_path), "me")).arm()
    with Ledger.open(plan.ledger_url) as opened:
        opened.begin(load("1"), owner="dag/run")
        assert not struck(str(tmp_path), 0)  # nobody held it
        held_file(str(tmp_path), 0).touch()
        opened.attempts(load("1"))
        assert not struck(str(tmp_path), 0)  # nobody waits to read
        opened.begin(load("2"), owner="dag/run")
        assert struck(str(tmp_path), 0)


def test_sigterm_lets_a_party_close_what_it_has_opened(tmp_path: Path) -> None:
    """While it looks for brokers, here; it would for half a minute."""
    plan = plan_of(tmp_path, Fault(Kind.SIGTERM, "begin", Moment(event="begin", delay_ms=700)))
    Ledger.open(plan.ledger_url, upgrade=True).close()
    plan.write()
    with zygote() as address:
        ended = ask(address, Order("begin", 0, "dag/run", str(tmp_path), limit_s=120))
        over = time.monotonic()
    assert ended.killed_by == signal.SIGTERM
    # not from the start of its Python on: that alone takes ten seconds of a busy machine
    (told,) = [e["t"] for e in events(str(tmp_path)) if e["event"] == "FAULT 0"]
    assert over - told < 15
    assert struck(str(tmp_path), 0)
    assert any("Terminated" in e.get("error", "") for e in events(str(tmp_path))), "it was not left by an exception"


def test_a_sleeper_alone_is_no_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether anything was open is found out from outside."""
    slept: list[float] = []
    monkeypatch.setattr(Striker, "_stop", lambda self, seconds: slept.append(seconds))
    plan = plan_of(tmp_path, Fault(Kind.TIMEOUT_BEFORE_DECISION, "decide"), hold_ms=SHORT_HOLD_MS)
    order = Order(Role.DECIDE.value, 0, "dag/run", str(tmp_path))
    for _ in range(2):
        Striker(plan, order, Timeline(str(tmp_path), "me")).arm()
    assert slept == [SHORT_HOLD_MS / 1000 + TIMED_OUT_S]
    assert not struck(str(tmp_path), 0)
