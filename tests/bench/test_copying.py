"""What a copy costs, in small: it is measured by both ways."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.broker
def test_both_ways_are_measured() -> None:
    knobs = {"RECORDS": "1000", "ROUNDS": "1", "SIZES": "9,140"}
    run = subprocess.run(
        [sys.executable, "-m", "bench.copying"], cwd=ROOT, env=os.environ | knobs, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    rows = [line.split() for line in run.stdout.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["9", "kernel"], ["9", "Python"], ["140", "kernel"], ["140", "Python"]]
    assert all(float(number) > 0 for row in rows for number in row[2:])
