"""Contestants' processes: answers, errors, ends, and whose CPU time counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.host import Host, HostFailed

#: Answers; burns CPU in a child that ends before anybody looks again, or that lives on.
SCRIPT = """
import subprocess, sys, time
BURN = "import time\\nwhile time.process_time() < 0.4: pass\\nprint(flush=True)\\ntime.sleep(60)"
for line in sys.stdin:
    word, *fields = line.rstrip("\\n").split("\\t")
    if word == "die":
        sys.exit(3)
    if word == "burn":
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", BURN], stdout=subprocess.PIPE)
        child.stdout.readline()
    if word == "kill":
        child.kill()
        child.wait()
    if word != "hang":
        print("noise")
        print("\\t".join(["@", *(["error=it broke"] if word == "fail" else fields)]), flush=True)
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host([sys.executable, "-I", "-S", "-c", SCRIPT], tmp_path / "log") as running:
        yield running


def test_fields_come_back_whatever_else_is_printed(host: Host) -> None:
    assert host.ask("run", {"topic": "t", "kafka.x": "a=b"}) == {"topic": "t", "kafka.x": "a=b"}


def test_an_error_an_end_and_silence_are_failures(host: Host) -> None:
    with pytest.raises(HostFailed, match="it broke"):
        host.ask("fail")
    with pytest.raises(HostFailed, match="no answer"):
        host.ask("hang", seconds=0.2)
    with pytest.raises(HostFailed, match="the process ended"):
        host.ask("die")


def test_cpu_of_children_counts_and_stays_when_they_end(host: Host) -> None:
    before = host.cpu_seconds
    host.ask("burn")
    burnt = host.cpu_seconds
    assert burnt - before >= 0.35
    host.ask("kill")
    assert host.cpu_seconds >= burnt
