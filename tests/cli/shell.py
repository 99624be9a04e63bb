"""The installed console script, as a shell runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SCRIPT = str(Path(sys.executable).with_name("airflow-kafka-eos"))


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a host where nothing is configured but what ``more`` says."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "COVERAGE", "PYTEST"))}
    return kept | {"AIRFLOW_HOME": str(home), "HOME": str(home)} | dict(more or {})


def shell(
    home: Path, *arguments: str | bytes, more: Mapping[str, str] | None = None, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run it with a home of its own."""
    return subprocess.run(
        [SCRIPT, *arguments], env=environment(home, more), stdout=stdout, stderr=subprocess.PIPE, text=True,
        errors="backslashreplace", timeout=120, cwd=home,
    )  # fmt: skip
