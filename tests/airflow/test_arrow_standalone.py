"""engine="arrow" in a real Airflow: a worker or the triggerer dies under it, and a person marks and clears it."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import Place
from tests.airflow.held import Held, right, wait_gone
from tests.airflow.processes import kill
from tests.airflow.rest import wait_for_dag
from tests.airflow.test_parts_killed import swept_across_triggerers

pytestmark = pytest.mark.timeout(900)


def held(place: Place, name: str) -> Held:
    wait_for_dag(place.airflow, "arrow")
    run = Held(place, name, "arrow")
    run.hold("writing")
    run.start()
    run.reached("writing")
    assert run.count(whole=False).seen == 0
    return run


def test_a_run_without_spark_arrives_once(place: Place) -> None:
    wait_for_dag(place.airflow, "arrow")
    run = Held(place, "arrow-plain", "arrow")
    run.start()
    assert run.wait() == "success", run.tasks()
    assert (run.count(whole=True), run.attempts()) == (right(whole=True), 1)
    log = run.log_of("prepare", 1)
    assert f"load {run.load} attempt 1: preparing in this process" in log
    assert ": prepared 200 records in " in log


def test_a_worker_that_is_killed_while_it_writes_is_retried_and_doubles_nothing(place: Place) -> None:
    run = held(place, "arrow-killed")
    kill(run.process("writing"))
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)
    assert run.attempts() == 2, "the killed one's is never decided"


def test_a_supervisor_that_is_killed_leaves_a_writer_that_nothing_becomes_of(place: Place) -> None:
    """The task's process lives on, and looks whether it is superseded."""
    run = held(place, "arrow-orphaned")
    orphan = run.process("writing")
    run.kill_supervisor("writing")
    run.go("writing")
    assert run.wait() == "success", run.tasks()
    wait_gone(orphan)
    assert run.count(whole=True) == right(whole=True)


def test_prepare_that_is_marked_failed_ends_and_goes_through_once_it_is_cleared(place: Place) -> None:
    run = held(place, "arrow-marked")
    task = run.process("writing")
    run.mark("prepare", "failed")
    wait_gone(task)
    assert run.wait() == "failed", run.tasks()
    assert run.count(whole=False) == right(whole=False), "cleanup has ended what was open"
    run.go("writing")
    run.clear("prepare", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)


def test_prepare_that_is_cleared_while_it_writes_begins_anew(place: Place) -> None:
    run = held(place, "arrow-cleared")
    task = run.process("writing")
    run.clear("prepare", downstream=True)
    wait_gone(task)
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)
    assert run.attempts() == 2


def test_a_triggerer_that_is_killed_costs_no_cleanup(place: Place) -> None:
    swept_across_triggerers(place, held(place, "arrow-triggerer"), "prepare")
