"""The definitions of hosted CI run what is there, and nothing that can change under them.

Whether they are workflows at all, and dangerous ones, is looked at by `make release-check`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"(?m)^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8")))


def jobs(workflow: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return found


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(workflow).values():
        yield from job["steps"]


def test_there_is_one_for_each_push_and_one_for_releases() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "release.yml"]
    ran = {path.name: " ".join(step.get("run", "") for step in steps(path)) for path in WORKFLOWS}
    assert ".ci/run" in ran["ci.yml"] and "make release-check" in ran["ci.yml"]
    assert "make sbom" in ran["release.yml"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_what_they_run_is_there(workflow: Path) -> None:
    for run in (step["run"] for step in steps(workflow) if "run" in step):
        assert set(re.findall(r"(?:^|&& )make ([a-z-]+)", run)) <= TARGETS, run
        for script in re.findall(r"(?:^|&& )(\.?[a-z]+/[\w-]+)", run):
            assert os.access(ROOT / script, os.X_OK), run


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_their_commit(workflow: Path) -> None:
    """A tag can be moved by others."""
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == []


def test_only_the_upload_may_ask_for_an_identity_and_it_runs_none_of_our_code() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    assert [name for name, job in release.items() if "id-token" in job["permissions"]] == ["publish"]
    assert [step for step in release["publish"]["steps"] if "run" in step] == []
    assert release["publish"]["needs"] == "build"
