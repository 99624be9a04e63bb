"""One real Airflow, all parts of ``airflow standalone``, for the folder, beside the session's broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import HOST, free_ports
from airflow_kafka_eos.sandbox.spark import quick_settings
from tests.airflow.processes import end_session
from tests.airflow.steps import connection
from tests.airflow.tries import Tries
from tests.airflow.yarn import RUNS, Yarn, yarn
from tests.postgresql import PostgreSQL

SECRET = "hunter2-correct-horse"
TOPICS = ("plain", "refused", "in_worker", "reloaded")
#: No file changes: to parse all of them every 30 seconds, as Airflow does, takes a tenth of a core for half an hour.
PARSED_ONCE = {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300"}
#: Airflow notices within seconds what it else notices within minutes: a cleared task that runs, a dead supervisor, a
#: dead scheduler. A task that a test holds takes a slot.
EAGER = {
    "AIRFLOW__CORE__PARALLELISM": "8",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    **PARSED_ONCE,
}


#: of an Airflow; tests add what its tasks find besides
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


@dataclass(frozen=True)
class Place:
    """The running Airflow, and where its parts are."""

    airflow: LocalAirflow
    ledger: Ledger
    switches: Path
    bootstrap: str
    kafka: LocalKafka
    yarn: Yarn
    #: where the connection spark_connect expects a server
    connect_port: int
    #: what a test has started again
    again: list[subprocess.Popen[bytes]] = field(default_factory=list)


@pytest.fixture(scope="session")
def place(kafka: LocalKafka, postgresql: PostgreSQL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("airflow")
    switches = tmp_path_factory.mktemp("switches")
    for topic in TOPICS:
        kafka.create_topic(topic, partitions=2)
    (connect_port,) = free_ports(1)
    connections: dict[str, dict[str, Any]] = {
        "spark_connect": {"conn_type": "spark_connect", "host": HOST, "port": connect_port},
        # a password that this broker's listener does not ask for: it must show up nowhere
        "kafka_default": {
            "conn_type": "kafka",
            "extra": {"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": SECRET},
        },
        "spark_default": {
            "conn_type": "spark",
            "host": "local[2]",
            "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
        },
    }
    settings = quick_settings(home / "spark") | EAGER | {"TEST_SWITCHES": str(switches)}
    settings |= {"TEST_TODAY": str(datetime.now(UTC).date())}
    settings |= postgresql.for_airflow("airflow")
    with (
        yarn(tmp_path_factory.mktemp("yarn")) as elsewhere,
        Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db", upgrade=True) as ledger,
        LocalAirflow(
            # tests kill parts of it, look at what follows, and start them themselves
            home,
            Path(__file__).parent / "dags",
            connections=connections | {"yarn_default": elsewhere.connection},
            settings=settings | elsewhere.environment | {"PATH": f"{PATH}{os.pathsep}{elsewhere.bin}"},
            start_again=False,
        ) as airflow,
    ):
        there = Place(airflow, ledger, switches, kafka.bootstrap_servers, kafka, elsewhere, connect_port)
        yield there
    for leader in there.again:
        end_session(leader)
    assert not airflow.processes(), "LocalAirflow.stop leaves nothing behind, whatever was killed before"


@pytest.fixture
def home(kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Airflow's home with an embedded ledger of its own, and good connections to broker and local Spark."""
    settings = quick_settings(tmp_path / "conf") | {
        "AIRFLOW_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    # one broker has what all tests have loaded, each with a ledger of its own: tests of that guard put it back
    monkeypatch.setattr(Ledger, "is_embedded", False)
    connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap_servers})
    connection(monkeypatch, "spark_default", "spark", host="local[2]", extra={"deploy-mode": "client"})
    yield tmp_path


@pytest.fixture
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    """A platform for drivers that run elsewhere; they wait until a test lets them go on."""
    with yarn(home / "yarn") as started:
        monkeypatch.setenv("AIRFLOW_CONN_YARN_DEFAULT", json.dumps(started.connection))
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{started.bin}")
        monkeypatch.setenv(RUNS, json.dumps([sys.executable, "-m", "tests.airflow.yarn_application"]))
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(PrepareLoadOperator, "shortest_poll_s", 0.05)
        (started.folder / "hold").touch()
        yield started


@pytest.fixture
def tries(there: Yarn, home: Path, kafka: LocalKafka, topic: Callable[..., str], request: Any) -> Tries:
    """Of a load of the test's own."""
    return Tries(there, home / "manifests", request.node.name, topic(1))
