"""`make test` and `make test-long` are every test, each of them once; and a run says how far it is."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from _pytest.mark.expression import Expression, ExpressionMatcher

from tests.long_tests import LONG
from tests.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
MARKS = [
    line.partition(":")[0]
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
]


def _selects(target: str) -> str:
    """A target's ``-m``, after a look that nothing else leaves out a test."""
    (recipe,) = re.findall(rf"(?m)^{target}:.*\n\t(.+)$", MAKEFILE)
    found = re.fullmatch(r'\$\(PYTEST\) -m ("[a-z ]+"|[a-z]+)', recipe)
    assert found is not None, recipe
    return found[1].strip('"')


def _in(marks: tuple[str, ...]) -> ExpressionMatcher:
    def has(name: str, /, **_: str | int | bool | None) -> bool:
        return name in marks

    return has


def test_each_test_is_of_exactly_one_of_both() -> None:
    """Whatever marks it has: so nothing is left out, and nothing runs twice."""
    assert re.findall(r"(?m)^PYTEST := (.+)$", MAKEFILE) == ["$(BIN)/pytest -n $(WORKERS) -p tests.progress"]
    short, long = (Expression.compile(_selects(target)) for target in ("test", "test-long"))
    for marks in itertools.chain.from_iterable(itertools.combinations(MARKS, n) for n in range(len(MARKS) + 1)):
        assert short.evaluate(_in(marks)) != long.evaluate(_in(marks)), marks
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert options["testpaths"] == ["tests"]
    assert not [option for option in options["addopts"] if option.startswith(("-m", "-k", "--deselect", "--ignore"))]


def test_hooks_before_a_commit_are_what_make_lint_runs() -> None:
    """And none is fetched from elsewhere."""
    (recipe,) = re.findall(r"(?m)^lint:.*\n((?:\t.+\n)+)", MAKEFILE)
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (local,) = config["repos"]
    assert (local["repo"], {hook["language"] for hook in local["hooks"]}) == ("local", {"system"})
    entries = [hook["entry"] for hook in local["hooks"]]
    assert entries == recipe.replace("$(BIN)", ".venv/bin").replace("\t", "").splitlines()


def test_ci_runs_both() -> None:
    commands = re.findall(r"(?m)^make ([a-z-]+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert commands == ["demo", "docs", "test", "test-long"]


def test_what_has_not_begun_when_the_time_is_up_is_skipped_and_counted() -> None:
    """No test that is cut off passes for one that passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_amounts.py"]
    cut = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TESTS_UNTIL": str(time.time() - 1)}, capture_output=True, text=True
    )
    assert cut.returncode == 0, cut.stdout
    assert re.search(r"SKIPPED \[\d+\] conftest.py:\d+: not run: the time that TESTS_UNTIL allows was up", cut.stdout)
    assert "passed" not in cut.stdout
    whole = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TESTS_UNTIL": str(time.time() + 600)}, capture_output=True, text=True
    )
    assert "passed" in whole.stdout and "skipped" not in whole.stdout


@pytest.mark.parametrize("named", LONG)
def test_what_is_called_long_is_there(named: str) -> None:
    path = ROOT / named
    assert path.is_file() or any(path.glob("test_*.py"))


def test_what_is_checked_before_a_commit_is_there() -> None:
    (files,) = re.findall(r"(?m)^CHECKED := (.*\\\n.*)$", MAKEFILE)
    named = [word for word in files.replace("\\\n", " ").split() if word.startswith("tests/") and "*" not in word]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert any(name.startswith("tests/protocol/") for name in named)


def ran(seconds: dict[str, float]) -> Any:
    """A pytest that has seen these files before."""
    return SimpleNamespace(cache=SimpleNamespace(get=lambda key, default: seconds), pluginmanager=None)


def report(nodeid: str, when: str = "teardown", failed: bool = False) -> Any:
    return SimpleNamespace(nodeid=nodeid, when=when, failed=failed, duration=1.0)


@pytest.mark.parametrize(("before", "percent", "left"), [({}, 50, "1:40"), ({"a.py": 90.0, "b.py": 10.0}, 90, "0:11")])
def test_it_says_how_far_it_is(
    before: dict[str, float], percent: int, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that took long counts for much, where that is known."""
    now = iter([0.0, 100.0])
    progress = Progress(ran(before), clock=lambda: next(now))
    monkeypatch.setattr("threading.Thread.start", lambda self: None)
    progress.begin(["a.py::one", "a.py::two", "b.py::one", "b.py::two"])
    for when in ("setup", "call", "teardown"):
        for test in ("a.py::one", "a.py::two"):
            progress.pytest_runtest_logreport(report(test, when, failed=when == "call" and test == "a.py::two"))
    text = progress.line()
    assert f" {percent} % in 1:40, about {left} left; 2 of 4 tests, 1 failed; now a.py" in text
