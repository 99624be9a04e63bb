"""Parties start, die, sleep and are told of as they are, and none outlives the campaign."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.generating import generate
from tests.faults.plan import Ended, Order, Plan
from tests.faults.scenario import Fault, Kind, LoadPlan, Moment
from tests.faults.striking import struck
from tests.faults.timeline import events, told
from tests.faults.zygote import ROOT, ask, living, zygote


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with zygote() as running:
        yield running


def order(folder: Path, *faults: Fault, limit_s: float = 30) -> Order:
    """A begin without a ledger: it fails at once, if it comes so far."""
    scenario = replace(generate(1), loads=(LoadPlan(10, 10, 1),), faults=faults)
    Plan(scenario.to_json(), str(folder), "127.0.0.1:1", f"sqlite:///{folder}/none.db", "n", (("t",),)).write()
    return Order("begin", 0, "dag/run", str(folder), limit_s=limit_s)


def at_once(kind: Kind, seconds: float = 0.0) -> Fault:
    return Fault(kind, "begin", Moment(event="begin"), seconds=seconds)


def until_struck(address: str, wanted: Order) -> tuple[float, Ended]:
    """A party that is struck: it may have come to its end before. How long it took, seconds, and how it ended."""
    for _ in range(100):
        begun = time.monotonic()
        ended = ask(address, wanted)
        if struck(wanted.folder, 0):
            return time.monotonic() - begun, ended
    raise AssertionError("nothing strikes")


def test_what_a_party_raised_is_told(address: str, tmp_path: Path) -> None:
    ended = ask(address, order(tmp_path))
    assert not ended.is_well and "LedgerNotReadyError" in ended.error and not ended.final
    assert [e["event"] for e in events(str(tmp_path))] == ["begins", "fails"]
    assert "LedgerNotReadyError" in told(str(tmp_path))
    assert living(str(tmp_path)) == []


def test_a_fault_strikes_one_party_of_a_run(address: str, tmp_path: Path) -> None:
    wanted = order(tmp_path, at_once(Kind.SIGKILL))
    endings = [ask(address, wanted) for _ in range(20)]
    assert [e.killed_by for e in endings].count(signal.SIGKILL) == int(struck(str(tmp_path), 0)) == 1
    assert living(str(tmp_path)) == []


def test_a_party_that_is_stopped_goes_on(address: str, tmp_path: Path) -> None:
    wanted = order(tmp_path, at_once(Kind.PAUSE, 0.6))
    took, ended = until_struck(address, wanted)
    assert took > 0.6
    assert "LedgerNotReadyError" in ended.error


def test_a_party_that_takes_too_long_is_killed(address: str, tmp_path: Path) -> None:
    wanted = order(tmp_path, at_once(Kind.PAUSE, 1.5), limit_s=0.5)
    _, ended = until_struck(address, wanted)
    assert ended.killed_by == signal.SIGKILL


def test_the_zygote_ends_with_whoever_started_it() -> None:
    script = (
        "import subprocess, time\nfrom tests.faults import zygote as z\n"
        "started = []\nreal = subprocess.Popen\n"
        "def noted(*a, **k):\n    p = real(*a, **k); started.append(p.pid); return p\n"
        "z.subprocess.Popen = noted\n"
        "with z.zygote() as address:\n    print(started[0], flush=True); time.sleep(60)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    group = int(starter.stdout.readline())
    os.killpg(group, 0)
    starter.kill()
    starter.wait()
    give_up = time.monotonic() + 20
    while _exists(group):
        assert time.monotonic() < give_up, "the zygote lives on"
        time.sleep(0.05)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
