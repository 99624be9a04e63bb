"""Wheel and sdist are whole, install into a clean environment, and load from there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

from airflow_kafka_eos.kafka.records.kernel import LIBRARY
from tests.packaging import environments
from tests.packaging.demonstrated import demo, of_demo, processes_of
from tests.packaging.environments import ROOT, run
from tests.packaging.smoke import RECORDS

#: the DAGs of dags/
EXAMPLES = [
    *("approve_outsized", "by_spark_connect", "deadline_alert", "dual_write_postgresql", "hourly_partitioned_load"),
    *("hourly_partitioned_reader", "kafka_eos_maintenance", "load_in_doubt", "mapped_topics", "own_operator"),
    "without_spark",
]


def tracked(folder: str) -> set[str]:
    found = run("git", "ls-files", "-co", "--exclude-standard", folder, cwd=ROOT).splitlines()
    return {name for name in found if (ROOT / name).is_file()}


def test_the_wheel_holds_the_package_and_nothing_else(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    # compiled where there is a C compiler, and then the wheel says for which platform it is
    kernel = {str(LIBRARY.relative_to(ROOT))} if shutil.which("cc") else set()
    examples = {f"airflow_kafka_eos/{name}" for name in tracked("dags") if Path(name).parent == Path("dags")}
    assert names == tracked("airflow_kafka_eos") | kernel | examples
    assert built["wheel"].name.endswith("-py3-none-any.whl") == (not kernel)


def test_the_same_source_makes_the_same_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    """Whoever doubts an upload builds it again, wherever and whenever that is."""
    again = tmp_path / "another" / "place"
    shutil.copytree(built["source"], again)
    for path in again.rglob("*"):
        os.utime(path, (1, 1))
    run(
        "sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist",
        cwd=again, env={"TZ": "Asia/Tokyo", "LC_ALL": "C"},
    )  # fmt: skip
    for one in (built["sdist"], built["wheel"]):
        assert (tmp_path / "dist" / one.name).read_bytes() == one.read_bytes(), one.name


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
    return environments.installed(built["wheel"], tmp_path_factory.mktemp("installed"), "[demo]").parent


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
    run(installed / "airflow-kafka-eos", "examples", "copy", home / "copied", cwd=home)
    in_copied = (
        "import sys; from airflow.dag_processing.dagbag import DagBag; bag = DagBag(sys.argv[1], bundle_name='x'); "
        "assert not bag.import_errors, bag.import_errors; print(*sorted(bag.dags))"
    )
    parsed = run(installed / "python", "-c", in_copied, home / "copied", cwd=home).splitlines()[-1]
    assert parsed.split() == EXAMPLES
    found = environments.smoked(installed / "python", home)
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
            r"Airflow's scheduler ended by itself \(killed by SIGKILL\); started again \(1\), its log: (\S+)"
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
