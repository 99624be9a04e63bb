"""Wheel and sdist are whole, install into a clean environment, and load from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.smoke import RECORDS

ROOT = Path(__file__).parents[2]
#: what decides where Python and the command line look; the installed package must do without
OURS = ("PYTHONPATH", "VIRTUAL_ENV", "AIRFLOW", "PYSPARK", "SPARK")


def run(*command: object, cwd: Path, timeout: float = 250) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(OURS)}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env | {"AIRFLOW_HOME": str(cwd)}, timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built of the sdist alone, as a package index's users would."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    (sdist,) = out.glob("*.tar.gz")
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    (wheel,) = out.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel, "source": source}


def tracked(folder: str) -> set[str]:
    found = run("git", "ls-files", "-co", "--exclude-standard", folder, cwd=ROOT).splitlines()
    return {name for name in found if (ROOT / name).is_file()}


def test_the_wheel_holds_the_package_and_nothing_else(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == tracked("airflow_kafka_eos")


def test_the_sdist_holds_what_its_tests_and_the_demo_need(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert tracked(".") - {".dockerignore"} - tracked(".ci") <= names


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_it_installs_in_a_clean_environment_and_loads_from_there(
    built: dict[str, Path], tmp_path: Path
) -> None:
    venv, home = tmp_path / "venv", tmp_path / "home"
    home.mkdir()
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    python = venv / "bin" / "python"
    run(
        python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-compile",
        "-c", ROOT / "constraints.txt", f"{built['wheel']}[spark]", cwd=home, timeout=600,
    )  # fmt: skip
    assert "airflow-kafka-eos" in run(venv / "bin" / "airflow-kafka-eos", "--help", cwd=home)
    run(venv / "bin" / "airflow", "db", "migrate", cwd=home)
    shown = run(venv / "bin" / "airflow", "providers", "list", "--output", "json", cwd=home)
    assert '"package_name": "airflow-kafka-eos"' in shown
    smoke = tmp_path / "smoke.py"  # not beside the clone's own package
    smoke.write_text((Path(__file__).parent / "smoke.py").read_text())
    run(python, smoke, home, cwd=home, timeout=250)
    found = json.loads((home / "smoke.json").read_text())
    assert found["exit_code"] == 0
    assert found["values"] == sorted(f"order {n}" for n in range(RECORDS))
    assert found["package"].startswith(str(venv))
