"""The conformance kit: our engines keep the contract, and each wrong prepare breaks the clause that it is meant to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_kafka_eos import manifest
from airflow_kafka_eos import spark as package
from airflow_kafka_eos.spark import spec
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.testing import (
    CLAUSES,
    Assignment,
    Clause,
    NotConforming,
    Place,
    Prepare,
    Process,
    local_place,
)
from tests.airflow.processes import kill, of_session
from tests.connect.server import Server, server
from tests.spark.conftest import spark_environment
from tests.testing.own import FAULTS, RIGHT

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

APPLICATION = str(Path(package.__file__).with_name("application.py"))
BY_NAME = {clause.name: clause for clause in CLAUSES}
#: What is said of a wrong one, where its clause has other ones, too.
SAID = {
    "never-gives-up": "still runs after",
    "begins-anew": "initialised .* anew",
    "begins-anew-until-it-is-told": "initialised .* anew",
    "begins-behind-its-deadline": "had passed before it began",
    "looks-at-its-deadline-once": "passed while it was writing",
    "reads-all-of-it": "counts 600 records, and the load has 200",
    "notes-its-end-last": "not noted where its range ends",
    "notes-another-end": "ends at 599, and the job has chosen 600",
    "prints-its-settings": "has printed a secret",
    "leaves-its-settings": r"\.settings holds a secret",
    "writes-all-of-it-again": "was not leased to this attempt",
    "repairs-with-other-rows": "and the log has",
    "ends-what-it-repairs": "the brokers do not confirm",
}
each_clause = pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with local_place(tmp_path_factory.mktemp("contract"), records=600) as found:
        yield found


def by(
    command: Sequence[str], more: Callable[[], dict[str, str]] = dict, kind: type[Process] = Process
) -> Prepare:
    def start(assignment: Assignment) -> Process:
        given = {**more(), SETTINGS_VARIABLE: assignment.settings, "PYTHONPATH": os.getcwd()}
        return kind([*command, assignment.spec], given)

    return start


def python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]


SPARK_SUBMIT = by(
    [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]", APPLICATION, "--spec"],
    spark_environment,
)


class Task(Process):
    """Of an operator whose command leads a session of its own, as a BashOperator's does."""

    def kill(self) -> None:
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            task = psutil.Process(self._process.pid)
            found = [task, *(one for led in task.children() for one in of_session(led.pid))]
        kill(*found)
        super().kill()


@pytest.fixture
def own_operator(tmp_path: Path) -> Prepare:
    """A task that has Kafka's settings of an Airflow connection, and hands them on itself."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def start(assignment: Assignment) -> Process:
        connection = json.dumps({"conn_type": "kafka", "extra": json.loads(assignment.settings)})
        given = {
            **spark_environment(), "AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_KAFKA_DEFAULT": connection, "PATH": path
        }  # fmt: skip
        return Task([*python("tests.testing.by_own_operator"), assignment.spec], given)

    return start


@pytest.mark.spark
@each_clause
def test_an_own_operator_conforms(place: Place, own_operator: Prepare, clause: Clause) -> None:
    clause.check(place, own_operator)


@pytest.mark.spark
@each_clause
def test_spark_submit_conforms(place: Place, clause: Clause) -> None:
    clause.check(place, SPARK_SUBMIT)


@pytest.fixture(scope="module")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # an operation whose client was killed keeps its two tasks for as long as their gate is closed
    with server(tmp_path_factory.mktemp("server"), master="local[8,2]") as running:
        # the kit's password is not sent, so the login has to be there, with nothing in it
        running.login("kafka_default", {})
        yield running


@pytest.mark.spark
@each_clause
def test_spark_connect_conforms(place: Place, connect_server: Server, clause: Clause) -> None:
    """What is killed is the client: the server goes on with what it was asked for."""
    clause.check(place, by(python("tests.testing.by_connect", str(connect_server.port))))


@each_clause
def test_the_engine_arrow_conforms(place: Place, clause: Clause) -> None:
    one = replace(place, job="airflow_kafka_eos.testing.rows:arrow", tasks=1)
    clause.check(one, by(python("tests.testing.by_arrow")))


@each_clause
def test_a_prepare_of_somebodys_own_conforms(place: Place, clause: Clause) -> None:
    clause.check(place, by(python("tests.testing.own", RIGHT)))


class Endless(Process):
    """Nobody waits for its end for as long as for its beginning."""

    def wait(self, timeout_s: float) -> int:
        return super().wait(min(timeout_s, 20))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_one_is_found_out(place: Place, fault: str) -> None:
    kind = Endless if fault == "never-gives-up" else Process
    with pytest.raises(NotConforming, match=f"^{FAULTS[fault]}: .*{SAID.get(fault, '')}") as caught:
        BY_NAME[FAULTS[fault]].check(place, by(python("tests.testing.own", fault), kind=kind))
    print(caught.value)
    assert "made-up-" not in str(caught.value)  # the password


def test_the_page_has_the_clauses_and_the_versions() -> None:
    text = (Path(__file__).parents[2] / "docs" / "prepare-contract.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^### `(.*)`$", text) == [clause.name for clause in CLAUSES]
    versions = f"Version {spec.SCHEMA_VERSION} of the specification, version {manifest.SCHEMA_VERSION} of the manifest"
    assert versions in " ".join(text.split())
    assert len(FAULTS) == 22 and "twenty-two wrong ones" in " ".join(text.split())


def test_every_clause_is_broken_by_some_prepare() -> None:
    assert set(FAULTS.values()) == set(BY_NAME)
