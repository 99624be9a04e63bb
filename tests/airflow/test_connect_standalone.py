"""Spark Connect in a real Airflow, with executors of their own: the client, the server and an executor die under it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import psutil
import pytest

from airflow_kafka_eos.connect.logins import FOLDER_VARIABLE
from airflow_kafka_eos.sandbox.spark import LocalSpark
from tests.airflow.conftest import SECRET, Place
from tests.airflow.held import Held, right, wait_gone
from tests.airflow.processes import kill
from tests.airflow.rest import wait_for_dag
from tests.airflow.test_parts_killed import swept_across_triggerers
from tests.connect.server import Server
from tests.spark.conftest import REPOSITORY

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def running(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server at the port of Airflow's connection, with two executors; they alone have Kafka's login."""
    folder = tmp_path_factory.mktemp("connect")
    made = Server(folder, port=place.connect_port)
    environment = {
        "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join([str(made.python), REPOSITORY]),
        FOLDER_VARIABLE: str(made.logins),
    }  # fmt: skip
    made.login("kafka_default", {"sasl.password": SECRET})
    with LocalSpark(workers=2, environment=environment) as cluster:
        made.at(cluster.master, cluster.client_environment)
        try:
            made.start()
            yield made
        finally:
            made.kill()


def held(place: Place, name: str, dag: str = "connect") -> Held:
    wait_for_dag(place.airflow, dag)
    run = Held(place, name, dag)
    run.hold("writing")
    run.start()
    run.reached("writing")
    assert run.count(whole=False).seen == 0
    return run


def arrives_once(run: Held, *attempts: int) -> None:
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)
    assert run.attempts() in attempts


def test_a_run_arrives_once_and_shows_no_secret(place: Place, running: Server) -> None:
    for dag in ("connect", "connect_whole"):
        wait_for_dag(place.airflow, dag)
        run = Held(place, f"{dag}-plain", dag)
        run.start()
        arrives_once(run, 1)
        log = run.log_of("prepare", 1)
        assert f"load {run.load} attempt 1: preparing by the Spark Connect server" in log
        assert ": prepared 200 records in " in log
        assert SECRET not in log
    assert SECRET not in running.log.read_text(encoding="utf-8", errors="replace")


def test_a_client_that_is_killed_is_retried_and_its_orphan_doubles_nothing(place: Place, running: Server) -> None:
    run = held(place, "connect-client")
    kill(run.process("writing"))
    run.go("writing")
    arrives_once(run, 2)


def test_a_supervisor_that_is_killed_leaves_a_client_that_nothing_becomes_of(place: Place, running: Server) -> None:
    run = held(place, "connect-supervisor")
    orphan = run.process("writing")
    run.kill_supervisor("writing")
    assert run.wait_for_attempts(2)
    run.go("writing")
    arrives_once(run, 2)
    wait_gone(orphan)


def test_a_server_that_is_killed_and_comes_back(place: Place, running: Server) -> None:
    run = held(place, "connect-server")
    running.kill()
    running.start()
    run.go("writing")
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)
    assert run.attempts() >= 2


@pytest.mark.parametrize(("dag", "attempts"), [("connect", (1,)), ("connect_whole", (1, 2))], ids=["task", "load"])
def test_an_executor_that_is_killed(place: Place, running: Server, dag: str, attempts: tuple[int, ...]) -> None:
    """Spark runs its task again. In scope load it dies before rows are arranged: what it had arranged of another task's
    may be lost with it, and with that the attempt.
    """
    run = held(place, f"{dag}-executor", dag)
    worker = psutil.Process(run.pid("writing"))
    executor = next(p for p in worker.parents() if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline()))
    run.go("writing")
    kill(executor)
    arrives_once(run, *attempts)


def test_prepare_that_is_marked_failed_ends_and_goes_through_once_it_is_cleared(place: Place, running: Server) -> None:
    run = held(place, "connect-marked")
    client = run.process("writing")
    run.mark("prepare", "failed")
    wait_gone(client)
    assert run.wait() == "failed", run.tasks()
    run.go("writing")
    assert run.count(whole=False) == right(whole=False), "cleanup has ended what was open"
    run.clear("prepare", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)


def test_a_triggerer_that_is_killed_costs_no_cleanup(place: Place, running: Server) -> None:
    swept_across_triggerers(place, held(place, "connect-triggerer"), "prepare")
