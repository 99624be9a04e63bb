"""Somebody pauses a DAG while it loads, the commonest click in an emergency: no reader waits until it is unpaused."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from airflow_kafka_eos.load import LoadState
from tests.airflow.conftest import Place
from tests.airflow.held import Held, right
from tests.airflow.rest import Run, wait_for, wait_for_dag

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def unpaused(place: Place) -> Iterator[None]:
    """Whatever a test that failed has left."""
    yield
    for dag in ("at_once", "approved"):
        place.airflow.patch(f"/dags/{dag}", {"is_paused": False})


def state(run: Held) -> LoadState | None:
    row = run.place.ledger.load(run.load)
    return None if row is None else row.state


def test_a_dag_that_is_paused_while_prepare_runs_holds_no_reader_back(place: Place) -> None:
    """prepare decides and commits by itself: Airflow schedules nothing behind it."""
    run = Held(place, "paused", "at_once")
    run.hold("writing")
    run.start()
    run.reached("writing")
    run.pause(True)
    run.go("writing")
    run.wait_task("prepare", "success")
    wait_for(lambda: not run.held_back(), lambda: f"readers of {run.id}: {run.tasks()}")
    assert run.count(whole=True) == right(whole=True)
    assert {run.tasks()[task][0] for task in ("decide", "commit", "cleanup", "loaded")} == {None}
    run.pause(False)
    assert run.wait() == "success", run.tasks()
    assert (run.count(whole=True), run.attempts()) == (right(whole=True), 1)


def test_what_a_check_refuses_is_ended_though_the_dag_is_paused_and_decide_says_why(place: Place) -> None:
    """prepare has done its part: it is not run again, and the task that fails is the one that checks."""
    run = Held(place, "paused-refused", "at_once")
    run.switch("refuse", True)
    run.hold("writing")
    run.start()
    run.reached("writing")
    run.pause(True)
    run.go("writing")
    run.wait_task("prepare", "success")
    wait_for(lambda: not run.held_back(), lambda: f"readers of {run.id}: {run.tasks()}")
    assert (run.count(whole=False), state(run)) == (right(whole=False), LoadState.ABORTING)
    assert run.tasks()["cleanup"][0] is None, "it is not what has ended it"
    run.pause(False)
    assert run.wait() == "failed", run.tasks()
    assert state(run) is LoadState.ABORTED
    assert (run.tasks()["prepare"], run.tasks()["decide"]) == (("success", 1), ("failed", 1))
    log = place.airflow.get(f"/dags/at_once/dagRuns/{run.id}/taskInstances/load.decide/logs/1", full_content=True)
    assert "CheckFailedError: the load is refused: the switch is set" in str(log)
    run.switch("refuse", False)
    run.clear("prepare", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)


def test_what_passes_by_itself_is_left_to_decide_and_spark_writes_once(place: Place) -> None:
    run = Held(place, "check-away", "at_once")
    run.switch("fails-once", True)
    run.start()
    assert run.wait() == "success", run.tasks()
    assert (run.tasks()["prepare"][1], run.tasks()["decide"][1], run.attempts()) == (1, 1, 1)
    assert run.count(whole=True) == right(whole=True)


def test_a_load_that_waits_for_a_person_in_a_paused_dag_is_ended_and_loads_once_later(place: Place) -> None:
    """Nothing of prepare's may decide before the person does. Once the DAG is paused, nobody resumes the question."""
    run = Held(place, "paused-question", "approved")
    wait_for_dag(place.airflow, "sweeps_paused")
    run.start()
    run.wait_task("approve", "awaiting_input")
    assert (state(run), len(run.held_back())) == (LoadState.PREPARED, 2)
    sweep(place, "not-paused")
    assert (state(run), len(run.held_back())) == (LoadState.PREPARED, 2), "its DAG goes on"
    run.pause(True)
    found = sweep(place, "paused")
    assert [one["load"] for one in found["paused"]] == [str(run.load)]
    assert (run.count(whole=False), state(run)) == (right(whole=False), LoadState.ABORTED)
    assert "its DAG is paused" in place.ledger.attempts(run.load)[-1].reason
    run.pause(False)
    answer(place, run)
    assert run.wait() == "failed", run.tasks()
    assert run.tasks()["decide"] == ("failed", 1), "an approval that comes too late commits nothing"
    run.clear("prepare", downstream=True)
    run.wait_task("approve", "awaiting_input")
    answer(place, run)
    assert run.wait() == "success", run.tasks()
    assert (run.count(whole=True), run.attempts()) == (right(whole=True), 2)


def sweep(place: Place, run_id: str) -> dict[str, list[dict[str, str]]]:
    """What maintenance did in the namespace."""
    run = Run(place.airflow, "sweeps_paused", run_id)
    run.start()
    assert run.wait() == "success", run.tasks()
    path = f"/dags/sweeps_paused/dagRuns/{run_id}/taskInstances/sweep/xcomEntries/return_value"
    found = place.airflow.get(path, deserialize=True, stringify=False)["value"]["airflow"]
    assert isinstance(found, dict)
    return found


def answer(place: Place, run: Held) -> None:
    """Approve, as a person does it in Airflow; no faster, see :meth:`tests.airflow.examples.Examples.answer`."""
    time.sleep(3)
    path = f"/dags/{run.dag}/dagRuns/{run.id}/taskInstances/load.approve/-1/hitlDetails"
    place.airflow.patch(path, {"chosen_options": ["Approve"], "params_input": {}})
