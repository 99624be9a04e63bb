"""``python -m tests.mutations [name or rule ...]``: take out one guard after the other, and see a test go red.

Exit code 1 when a mutation survives its tests.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.mutations.apply import copied, mutate, run_tests
from tests.mutations.table import MUTATIONS, Mutation


def verdict(mutation: Mutation, root: Path) -> str:
    """``killed``, ``SURVIVED``, or what kept the tests from telling."""
    path = root / mutation.file
    before = path.read_text(encoding="utf-8")
    mutate(mutation, root)
    try:
        run = run_tests(mutation.tests, root)
    except subprocess.TimeoutExpired:
        return "HUNG"
    finally:
        path.write_text(before, encoding="utf-8")
    if run.returncode == 1:
        return "killed"
    return (
        "SURVIVED" if run.returncode == 0 else f"NOT RUN (exit code {run.returncode})\n{run.stdout[-2000:]}"
    )


def main(chosen: list[str]) -> int:
    mutations = [m for m in MUTATIONS if not chosen or m.name in chosen or m.rule in chosen]
    alive = 0
    with copied() as root:
        for mutation in mutations:
            begun = time.monotonic()
            found = verdict(mutation, root)
            alive += found != "killed"
            seconds = time.monotonic() - begun
            print(f"{mutation.rule:30} {mutation.name:30}{seconds:6.1f} s  {found}", flush=True)
    print(f"{len(mutations) - alive} of {len(mutations)} killed")
    return 1 if alive or not mutations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
