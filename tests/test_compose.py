"""docker-compose.yml describes the same broker as the sandbox runs natively."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_kafka_eos.sandbox.broker import Node, server_settings
from airflow_kafka_eos.sandbox.jars import full_version

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
CONSTRAINTS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())

#: Addresses and folders, which a container has of its own
PLACES = {
    "controller.quorum.voters",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "log.dirs",
}
#: What makes the tests' broker start and stop quickly on a small machine; nobody's data depends on it
HASTE = {
    "group.initial.rebalance.delay.ms",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "broker.session.timeout.ms",
    "broker.heartbeat.interval.ms",
    "replica.fetch.wait.max.ms",
    "num.network.threads",
    "num.io.threads",
    "log.cleaner.dedupe.buffer.size",
}


def _container_settings() -> dict[str, str]:
    # Kafka's image turns KAFKA_A_B into a.b
    environment = SERVICES["kafka"]["environment"]
    return {
        name.removeprefix("KAFKA_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith("KAFKA_")
    }


def _native_settings() -> dict[str, str]:
    node = Node(1, 9092, 9093, Path("/data"))
    return server_settings(node, [node], {})


@pytest.mark.parametrize("name", ["transaction.two.phase.commit.enable", "unstable.api.versions.enable"])
def test_both_brokers_take_two_phase_commit(name: str) -> None:
    assert _container_settings()[name] == "true"
    assert _native_settings()[name] == "true"


def test_the_container_s_broker_is_the_tests_broker() -> None:
    native, container = _native_settings(), _container_settings()
    assert {k: v for k, v in native.items() if k not in PLACES | HASTE} == {
        k: v for k, v in container.items() if k not in PLACES
    }
    assert set(native) >= PLACES
    assert set(container) >= PLACES


def test_both_run_the_same_kafka() -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{full_version('4.4')}"


def test_the_image_has_the_airflow_and_python_that_are_tried() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(r"^FROM apache/airflow:([\d.]+)-python([\d.]+)$", text, re.MULTILINE)
    assert found is not None
    assert found[1] == CONSTRAINTS["apache-airflow"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Programming Language :: Python :: {found[2]}" in project["classifiers"]


def test_spark_s_two_packages_are_one_version() -> None:
    # they unpack into the same folder
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = {p.split("==")[1] for p in project["optional-dependencies"]["spark"] if p.startswith("pyspark")}
    assert pinned == {CONSTRAINTS["pyspark"]} == {CONSTRAINTS["pyspark-client"]}
    assert not any(re.match(r"pyspark\b", dependency) for dependency in project["dependencies"])


def test_ports_are_open_to_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_is_mounted_and_copied_is_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    lines = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[2:-1]]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_copies_all_that_a_wheel_is_built_of(tmp_path: Path) -> None:
    """pip builds the package in the image, of what COPY brings there and .dockerignore lets through."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    for line in (line for line in lines if line.startswith("COPY")):
        *sources, target = [word for word in line.split()[1:] if not word.startswith("--")]
        for source in sources:
            assert source in let_through, f"{source} is not let through by .dockerignore"
            place = tmp_path / target / Path(source).name if target.endswith("/") else tmp_path / target
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__", "*.elf"))
            else:
                shutil.copy(ROOT / source, place)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
