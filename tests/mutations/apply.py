"""One mutation on a copy of the tree: apply it there, run its tests there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.table import Mutation

ROOT = Path(__file__).parents[2]
#: what the tests need; everything else stays behind
COPIED = (
    "airflow_kafka_eos",
    "tests",
    "dags",
    "bench",
    "scripts",
    "conftest.py",
    "pyproject.toml",
    "README.md",
)
TIMEOUT_S = 300


def mutate(mutation: Mutation, root: Path) -> None:
    """:raises ValueError: the snippet does not stand there exactly once."""
    path = root / mutation.file
    text = path.read_text(encoding="utf-8")
    if (count := text.count(mutation.original)) != 1:
        raise ValueError(f"{mutation.name}: its snippet stands {count} times in {mutation.file}")
    path.write_text(text.replace(mutation.original, mutation.mutated), encoding="utf-8")


def arguments(tests: tuple[str, ...]) -> list[str]:
    """pytest's arguments. ``file::name[a and b]`` becomes ``file::name -k "a and b"``: parameters' ids are long."""
    given: list[str] = []
    for test in tests:
        node, _, words = test.partition("[")
        given += [node, *(["-k", words.removesuffix("]")] if words else [])]
    return given


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy(source, folder)
        yield Path(folder)


def run_tests(tests: tuple[str, ...], root: Path) -> subprocess.CompletedProcess[str]:
    """pytest's exit code: 0 all passed, 1 a test failed, anything else: it told nothing."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments(tests)]
    # the copy before the editable install, in child processes too
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
