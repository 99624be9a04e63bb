"""`make demo` on a bare machine: says what to install, all of it at once, before anything is made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BASH = shutil.which("bash") or "/bin/bash"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has the shells that make calls, and nothing else."""
    (tmp_path / "bin").mkdir()
    for shell in ("sh", "bash"):
        (tmp_path / "bin" / shell).symlink_to(BASH)
    return {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}


def program(bare: dict[str, str], name: str, script: str) -> None:
    path = Path(bare["PATH"], name)
    path.write_text(f"#!{BASH}\n{script}\n")
    path.chmod(0o755)


def check(environment: dict[str, str], python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BASH, str(REPOSITORY / "scripts/check-tools"), python], env=environment, capture_output=True, text=True
    )


def test_make_demo_names_all_that_is_missing_and_makes_nothing(bare: dict[str, str]) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    done = subprocess.run(
        [make, "-C", str(REPOSITORY), "demo", "PYTHON=python3.11", "VENV=/nonexistent/venv"],
        env=bare, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("missing: ")]
    assert [line.split()[1] for line in said] == ["Python", "Java", "Maven,"]
    for package in ("python3.11 python3.11-venv", "openjdk-17-jre-headless", "maven"):
        assert f"apt-get install {package}\n" in done.stderr
    assert "command not found" not in done.stderr
    assert "creating" not in done.stdout


def test_make_demo_asks_for_the_tools_before_it_starts_anything() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make here")
    planned = subprocess.run(
        [make, "-n", "--no-print-directory", "-C", str(REPOSITORY), "demo"],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    lines = planned.splitlines()
    assert lines[0].startswith("bash scripts/check-tools")
    assert lines[-1].endswith("airflow-kafka-eos demo")


@pytest.mark.parametrize(
    ("banner", "found"),
    [('openjdk version "11.0.22" 2024-01-16', "11"), ('java version "1.8.0_392"', "1"), ("none", "none")],
)
def test_an_old_java_is_named(bare: dict[str, str], banner: str, found: str) -> None:
    program(bare, "java", f"echo '{banner}' >&2")
    program(bare, "mvn", "exit 0")
    done = check(bare)
    assert done.returncode == 1
    assert f"missing: Java 17 or newer (looked for: java, found: {found})" in done.stderr
    assert "Maven" not in done.stderr


def test_a_java_home_is_looked_into(bare: dict[str, str]) -> None:
    program(bare, "java", """echo 'openjdk version "17.0.15" 2025-04-15' >&2""")
    program(bare, "mvn", "exit 0")
    assert check(bare).returncode == 0
    assert "looked for: /nowhere/bin/java" in check(bare | {"JAVA_HOME": "/nowhere"}).stderr


def test_without_maven_only_maven_is_named(bare: dict[str, str]) -> None:
    program(bare, "java", """echo 'openjdk version "21.0.1" 2024-01-16' >&2""")
    done = check(bare)
    assert done.returncode == 1
    assert done.stderr.startswith("missing: Maven")
    assert "missing: Java" not in done.stderr
