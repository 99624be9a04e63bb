"""Wheel and sdist are whole, install into a clean environment, and load from there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from airflow_kafka_eos.kafka.producer.arrow.kernel import LIBRARY
from tests.packaging.demonstrated import OURS, demo, of_demo, processes_of
from tests.packaging.smoke import RECORDS

ROOT = Path(__file__).parents[2]


def run(*command: object, cwd: Path, timeout: float = 250, env: Mapping[str, str] | None = None) -> str:
    own = {k: v for k, v in os.environ.items() if not k.startswith(OURS)} | dict(env or {})
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=own | {"AIRFLOW_HOME": str(cwd)}, timeout=timeout,
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
    # compiled where there is a C compiler, and then the wheel says for which platform it is
    kernel = {str(LIBRARY.relative_to(ROOT))} if shutil.which("cc") else set()
    assert names == tracked("airflow_kafka_eos") | kernel
    assert built["wheel"].name.endswith("-py3-none-any.whl") == (not kernel)


def test_without_a_c_compiler_the_wheel_is_for_all_machines(built: dict[str, Path], tmp_path: Path) -> None:
    no_compiler = {"CC": "there-is-no-such-compiler"}
    said = run(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=built["source"], env=no_compiler
    )
    assert "the kernel is left out" in said
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as found:
        assert not [name for name in found.namelist() if name.endswith(".elf")]


def test_the_sdist_holds_what_its_tests_and_the_demo_need(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert tracked(".") - {".dockerignore"} - tracked(".ci") <= names


@pytest.fixture(scope="module")
def installed(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a clean environment with the wheel and what its demo needs."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=venv.parent)
    run(
        venv / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet",
        "--no-compile", "-c", ROOT / "constraints.txt", f"{built['wheel']}[demo]", cwd=venv.parent, timeout=600,
    )  # fmt: skip
    return venv / "bin"


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_it_installs_in_a_clean_environment_and_loads_from_there(installed: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert "airflow-kafka-eos" in run(installed / "airflow-kafka-eos", "--help", cwd=home)
    run(installed / "airflow", "db", "migrate", cwd=home)
    shown = run(installed / "airflow", "providers", "list", "--output", "json", cwd=home)
    assert '"package_name": "airflow-kafka-eos"' in shown
    smoke = tmp_path / "smoke.py"  # not beside the clone's own package
    smoke.write_text((Path(__file__).parent / "smoke.py").read_text())
    run(installed / "python", smoke, home, cwd=home, timeout=250)
    found = json.loads((home / "smoke.json").read_text())
    assert found["exit_code"] == 0
    assert found["values"] == sorted(f"order {n}" for n in range(RECORDS))
    assert found["package"].startswith(str(installed.parent))


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_the_installed_demo_survives_a_killed_scheduler_and_stays_up_to_be_looked_at(
    installed: Path, tmp_path: Path
) -> None:
    """The first command of a new user, from an empty folder; Airflow's scheduler is killed in its middle."""
    with demo(installed, tmp_path, "--keep-running") as running:
        running.wait_for(r"run of 2013-01-02: running")
        scheduler = of_demo(tmp_path, "scheduler")
        scheduler.kill()
        running.wait_for(
            r"Airflow's scheduler ended by itself \(killed by SIGKILL\); started again \(1\), its log: (\S+)", 10
        )
        running.wait_for(r"Every load arrived exactly once, the killed and the refused one too", 900)
        ui = running.wait_for(r"Airflow's UI +(http://127\.0\.0\.1:\d+)/")
        page = running.wait_for(r"Kafka transactions +(http://\S+)")
        of_run = running.wait_for(r"of the killed load +(http://\S+)")
        listing = running.wait_for(r"command line +(export AIRFLOW_KAFKA_EOS_LEDGER=\S+\s+\S+ loads list)")
        running.wait_for(r"transactions list --bootstrap-server")
        with httpx.Client(follow_redirects=True, timeout=60) as browser:
            assert browser.get(f"{ui}/auth/token/login").is_success, "no login is asked"
            for address in (page, of_run):  # Airflow's own page, that frames ours
                assert "<html" in browser.get(address).text
            assert "<html" in browser.get(f"{ui}/kafka-eos/").text
            loads = browser.get(f"{ui}/kafka-eos/api/loads").text
            assert "2013-01-05" in loads and "flights.load_flights" in loads
            token = browser.get(f"{ui}/auth/token").json()["access_token"]
            dags = browser.get(f"{ui}/api/v2/dags", headers={"Authorization": f"Bearer {token}"}).json()
        assert [d["dag_id"] for d in dags["dags"]] == ["flights"]
        assert run("sh", "-c", listing, cwd=tmp_path).count("COMMITTED") == 5
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(300) == 0
    assert "Traceback" not in running.text()
    summary = json.loads((tmp_path / ".demo" / "summary.json").read_text())
    assert [(s["visible_records"], s["missing"], s["duplicates"], s["open_transactions"]) for s in summary] == [
        (records, 0, 0, 0) for records in (842, 943, 914, 915, 720)
    ]
    assert not list(processes_of(tmp_path)), "it ends all of it"
