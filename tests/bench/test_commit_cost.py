"""What commit costs, in small: every world comes to its end, and every step is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.broker
def test_every_world_is_measured() -> None:
    knobs = {"WAVES": "2", "WAVE_MB": "1", "OTHERS_MB": "2"}
    run = subprocess.run(
        [sys.executable, "-m", "bench.commit_cost"], cwd=ROOT, env=os.environ | knobs, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    steps = [line.split("  ")[1] for line in run.stdout.splitlines() if " s " in line]
    commit = ["commit, another process", "loaded"]
    assert steps == ["decide", "its own pass", *commit, "decide", "its own pass", *commit, "decide", *commit]
