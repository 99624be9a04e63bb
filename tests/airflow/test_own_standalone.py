"""An own operator in a real Airflow: its task dies, is marked or cleared while Spark writes, or the triggerer dies."""

from __future__ import annotations

import pytest

from tests.airflow.conftest import Place
from tests.airflow.held import Held, right, wait_gone
from tests.airflow.processes import kill
from tests.airflow.rest import wait_for_dag
from tests.airflow.test_parts_killed import swept_across_triggerers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def held(place: Place, name: str) -> Held:
    wait_for_dag(place.airflow, "own_clicks")
    run = Held(place, name, "own_clicks")
    run.hold("writing")
    run.start()
    run.reached("writing")
    assert run.count(whole=False).seen == 0
    return run


def test_a_task_that_is_killed_while_spark_writes_is_retried_and_doubles_nothing(place: Place) -> None:
    """Its driver ends with it; the retry has an application, and an attempt, of its own."""
    run = held(place, "own-killed")
    driver = run.jvm()
    kill(run.process("writing"))
    wait_gone(driver)
    assert run.wait() == "success", run.tasks()
    assert (run.count(whole=True), run.attempts()) == (right(whole=True), 2)
    assert run.tasks()["submit"] == ("success", 2)
    log = run.log_of("submit", 2)
    assert f"load {run.load} attempt 2: submitting by BashOperator load.submit" in log


def test_submit_that_is_marked_failed_ends_and_goes_through_once_it_is_cleared(place: Place) -> None:
    run = held(place, "own-marked")
    task, driver = run.process("writing"), run.jvm()
    run.mark("submit", "failed")
    wait_gone(task)
    wait_gone(driver)
    assert run.wait() == "failed", run.tasks()
    assert run.count(whole=False) == right(whole=False), "cleanup has ended what was open"
    run.go("writing")
    run.clear("submit", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert (run.count(whole=True), run.attempts()) == (right(whole=True), 2)


def test_submit_that_is_cleared_while_spark_writes_begins_anew(place: Place) -> None:
    run = held(place, "own-cleared")
    task, driver = run.process("writing"), run.jvm()
    run.clear("submit", downstream=True)
    wait_gone(task)
    wait_gone(driver)
    assert run.wait() == "success", run.tasks()
    assert (run.count(whole=True), run.attempts()) == (right(whole=True), 2)


def test_a_triggerer_that_is_killed_costs_no_cleanup(place: Place) -> None:
    swept_across_triggerers(place, held(place, "own-triggerer"), "submit")
