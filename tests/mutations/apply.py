"""One mutation on a copy of the tree: apply it there, run its tests there."""

from __future__ import annotations

import os
import re
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
    "docs",
    "pyproject.toml",
    "README.md",
)
TIMEOUT_S = 300


def mutate(mutation: Mutation, root: Path) -> None:
    """:raises ValueError: the snippet does not stand there exactly once."""
    path = root / mutation.file
    path.write_text(mutated(mutation, path.read_text(encoding="utf-8")), encoding="utf-8")


def mutated(mutation: Mutation, text: str) -> str:
    """The file's text with the guard taken out. A guard that was only laid out anew is found all the same.

    :raises ValueError: the snippet does not stand there exactly once.
    """
    if text.count(mutation.original) == 1:
        return text.replace(mutation.original, mutation.mutated)
    found = list(_laid_out_anyhow(mutation.original).finditer(text))
    if len(found) != 1:
        raise ValueError(f"{mutation.name}: its snippet stands {len(found)} times in {mutation.file}")
    begin, end = found[0].span()
    return text[:begin] + _replacement(mutation, text, begin) + text[end:]


_TOKEN = re.compile(r"\w+|[^\w\s]")


def _laid_out_anyhow(snippet: str) -> re.Pattern[str]:
    """The same tokens, with other line breaks, other indentation, or a comma before a closing bracket."""
    pattern, before = "", ""
    for token in _TOKEN.findall(snippet):
        if token in ")]}" and before != ",":
            pattern += r"\s*,?"
        if before:
            pattern += r"\s+" if before[-1:].isidentifier() and token[:1].isidentifier() else r"\s*"
        pattern += re.escape(token)
        before = token
    return re.compile(pattern)


def _replacement(mutation: Mutation, text: str, begin: int) -> str:
    """What is put in, indented as the code at ``begin`` is."""
    is_statement = mutation.original.endswith("\n")
    if not mutation.mutated.strip():
        return "pass" if is_statement else ""
    line = text[text.rfind("\n", 0, begin) + 1 : begin]
    there = len(line) - len(line.lstrip())
    here = len(mutation.original) - len(mutation.original.lstrip(" "))
    first, *others = mutation.mutated.strip().split("\n")
    moved = [" " * max(0, len(o) - len(o.lstrip()) + there - here) + o.lstrip() for o in others]
    return "\n".join([first, *moved])


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
