"""Streaming queries in a real Airflow, with availableNow: each batch is there once, whatever is done to their runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.spark import quick_settings
from tests.airflow.conftest import EAGER, SECRET
from tests.airflow.held import wait_gone
from tests.airflow.processes import kill
from tests.airflow.rest import ENDED, Run, wait_for, wait_for_dag
from tests.airflow.streaming import LINES, Place, Streamed, command
from tests.postgresql import PostgreSQL

#: seconds; a run begins a minute late where the one before it was killed, and Spark takes its time on two cores
PATIENCE = 900
#: of a backfill
RUNS = int(os.environ.get("RUNS", "16"))

#: the ledger's password must show up nowhere
LEDGER_SECRET = "correct-horse-2-ledger"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def place(kafka: LocalKafka, postgresql: PostgreSQL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home, switches = tmp_path_factory.mktemp("airflow"), tmp_path_factory.mktemp("switches")
    connections: dict[str, dict[str, Any]] = {
        # passwords that broker and database do not ask for
        "kafka_default": {
            "conn_type": "kafka",
            "extra": {"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": SECRET},
        },
        "spark_default": {
            "conn_type": "spark",
            "host": "local[2]",
            "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
        },
        "ledger": {
            "conn_type": "postgres",
            "host": postgresql.directory,
            "port": postgresql.port,
            "login": "postgres",
            "password": LEDGER_SECRET,
            "schema": "streamed",
        },
    }
    postgresql.run("CREATE DATABASE streamed TEMPLATE template_ledger")
    settings = quick_settings(home / "spark") | EAGER | postgresql.for_airflow("airflow_streamed")
    settings |= {"TEST_SWITCHES": str(switches), "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120"}
    settings |= {"AIRFLOW__KAFKA_EOS__LEDGER_CONN_ID": "ledger"}
    dags = Path(__file__).parent / "stream_dags"
    with (
        Ledger.open(postgresql.url("streamed")) as ledger,
        LocalAirflow(home, dags, connections=connections, settings=settings) as airflow,
    ):
        airflow.env["AIRFLOW_KAFKA_EOS_LEDGER"] = postgresql.url("streamed")  # for commands
        yield Place(airflow, ledger, switches, kafka.bootstrap_servers, kafka)


def test_each_run_takes_what_is_there_and_tells_of_it_once(place: Place) -> None:
    query = Streamed(place, "streamed")
    query.feed(3)
    first = query.run("first")
    assert first.wait(PATIENCE) == "success", query.log_of(first, "run")
    assert query.count() == query.right()
    done = query.returned(first, "run")
    assert (done["query"], done["batches"], done["records"]) == ("airflow/streamed.load", [0, 2], 3 * LINES)
    log = query.log_of(first, "run")
    for number in range(3):
        assert f"batch {number} of query streamed.load: {LINES} records, in" in log
        assert f"; load {query.batch(number)} attempt 1" in log
    (event,) = query.events()
    assert (event["batches"], event["records"], event["query_id"]) == ([0, 2], 3 * LINES, done["query_id"])
    assert {batch: of["records"] for batch, of in event["by_batch"].items()} == dict.fromkeys("012", LINES)
    shown = query.page(first)
    assert {load["key"] for load in shown} == {query.batch(n).key for n in range(3)}
    assert {(load["state"], load["dag_id"], load["run_id"]) for load in shown} == {("COMMITTED", "streamed", "first")}

    # nothing new: the clear of all, and of loaded alone
    first.clear("run", downstream=True)
    assert first.wait(PATIENCE) == "success"
    first.clear("loaded")
    assert first.wait(PATIENCE) == "success"
    assert query.returned(first, "run")["batches"] is None
    assert (query.count(), len(query.events())) == (query.right(), 1)

    query.feed(2)
    second = query.run("second")
    assert second.wait(PATIENCE) == "success"
    assert query.count() == query.right()
    assert [e["batches"] for e in query.events()] == [[0, 2], [3, 4]]
    assert {load["key"] for load in query.page(second)} == {query.batch(n).key for n in (3, 4)}
    assert place.ledger.state(query.batch(4)) is LoadState.COMMITTED

    code, out, _ = command(place, "streams", "list", "--output", "json")
    row = next(row for row in json.loads(out) if row["name"] == "streamed.load")
    assert (code, row["decided"], row["checkpoint"]) == (0, 4, f"{query.folder}/checkpoint")
    code, out, _ = command(place, "loads", "show", "streamed.load", query.batch(4).key, "--output", "json")
    assert (code, json.loads(out)["attempts"][0]["by"]) == (0, "streamed/second#group=load")


def test_a_driver_that_is_killed_in_a_batch_holds_no_reader_back_until_the_retry(place: Place) -> None:
    """The retry is ten minutes away."""
    query = Streamed(place, "patient")
    query.feed(2)
    query.hold()
    run = query.run("killed")
    query.reached(run)
    kill(query.driver())
    run.wait_task("run", "up_for_retry")
    wait_for(lambda: not query.held_back(), lambda: f"readers: {query.log_of(run, 'run')}")
    assert query.count().seen == 0
    (attempt,) = place.ledger.attempts(query.batch(0))
    assert (attempt.verdict, attempt.responsible) == (Verdict.ABORT, "patient/killed#group=load")
    assert "run failed: " in attempt.reason
    # a person does not wait for the retry
    run.clear("run", downstream=True)
    assert run.wait(PATIENCE) == "success", query.log_of(run, "run", 2)
    assert query.count() == query.right()
    assert query.returned(run, "run")["batches"] == [0, 1]


def test_a_task_that_is_killed_takes_its_driver_along_and_leaves_nothing_open(place: Place) -> None:
    """The same, and nobody of Airflow's is left to end anything: the driver does it itself."""
    query = Streamed(place, "orphaned")
    query.feed(2)
    query.hold()
    run = query.run("killed")
    query.reached(run)
    driver = query.driver()
    task = driver.parent()
    assert task is not None
    kill(task)
    wait_gone(driver)
    wait_for(lambda: not query.held_back(), lambda: f"readers: {query.log_of(run, 'run')}")
    assert query.count().seen == 0
    (attempt,) = place.ledger.attempts(query.batch(0))
    assert attempt.verdict is Verdict.ABORT
    wait_for(lambda: run.tasks()["run"][0] != "running", lambda: f"{run.tasks()}")
    run.clear("run", downstream=True)
    assert run.wait(PATIENCE) == "success", query.log_of(run, "run", 2)
    assert query.count() == query.right()


def test_a_run_that_fails_for_good_leaves_nothing_open_and_the_next_one_tells_of_all(place: Place) -> None:
    query = Streamed(place, "failing_stream")
    query.feed(1)
    query.hold()
    first = query.run("first")
    query.reached(first)
    kill(query.driver())
    assert first.wait(PATIENCE) == "failed"
    assert {task: state for task, (state, _) in first.tasks().items()} == {
        "run": "failed", "cleanup": "success", "loaded": "upstream_failed",
    }  # fmt: skip
    assert (query.count().seen, query.held_back(), query.events()) == (0, [], [])
    assert place.ledger.attempts(query.batch(0))[-1].closed_at is not None, "seen to be quiet, by cleanup"
    query.feed(1)
    second = query.run("second")
    assert second.wait(PATIENCE) == "success", query.log_of(second, "run")
    assert query.count() == query.right()
    assert [e["batches"] for e in query.events()] == [[0, 1]]


def test_a_backfill_takes_all_once_and_its_other_runs_find_nothing(place: Place) -> None:
    """16 at once; and then the same again, while an old run is cleared and another is triggered."""
    query = Streamed(place, "hourly")
    query.feed(3)
    wait_for_dag(place.airflow, "hourly")
    body = {
        "dag_id": "hourly", "from_date": "2025-03-01T00:00:00Z", "to_date": f"2025-03-01T{RUNS - 1:02}:00:00Z",
        "max_active_runs": 16, "reprocess_behavior": "none",
    }  # fmt: skip
    number = place.airflow.backfill(body)

    def runs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = place.airflow.get("/dags/hourly/dagRuns", limit=100)["dag_runs"]
        return found

    def over() -> bool:
        done = place.airflow.get(f"/backfills/{number}")["completed_at"] is not None
        return done and all(run["state"] in ENDED for run in runs())

    wait_for(over, lambda: f"{[(r['dag_run_id'], r['state']) for r in runs()]}", seconds=1200)
    assert [run["state"] for run in runs()] == ["success"] * RUNS
    assert query.count() == query.right()
    taken = [query.returned(Run(place.airflow, "hourly", r["dag_run_id"]), "run")["batches"] for r in runs()]
    assert sorted(filter(None, taken)) == [[0, 2]]
    assert [e["batches"] for e in query.events()] == [[0, 2]]
    tries = place.airflow.get("/dags/hourly/dagRuns/~/taskInstances", limit=100)["task_instances"]
    assert {t["try_number"] for t in tries} == {1}, "none of them stood in another one's way"

    # a clear of an old run while a new one is at work
    query.feed(2)
    query.hold()
    new = query.run("new")
    query.reached(new)
    old = Run(place.airflow, "hourly", runs()[0]["dag_run_id"])
    old.clear("run", downstream=True)
    wait_for(lambda: old.state() == "running", lambda: old.state())
    query.go()
    assert [new.wait(PATIENCE), old.wait(PATIENCE)] == ["success", "success"]
    assert query.count() == query.right()
    assert query.returned(new, "run")["batches"] == [3, 4]


def test_another_dag_of_the_same_query_waits_and_fails_only_for_now(place: Place) -> None:
    query = Streamed(place, "shared")
    query.feed(1)
    query.hold()
    first = query.run("first")
    query.reached(first)
    second = query.run("second", dag="also_streamed")
    wait_for(lambda: "waits for its turn" in query.log_of(second, "run"), lambda: f"{second.tasks()}")
    assert "it is being run by shared/first" in query.log_of(second, "run")
    query.go()
    assert first.wait(PATIENCE) == "success", query.log_of(first, "run")
    assert second.wait(PATIENCE) == "success", query.log_of(second, "run")
    assert query.count() == query.right()
    assert (first.tasks()["run"], len(query.events()), query.events("also_streamed")) == (("success", 1), 1, [])


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_run_that_is_marked_while_it_works_leaves_nothing_open(place: Place, state: str) -> None:
    """The task, by a person; what it has committed stays, and the next run goes on there."""
    query = Streamed(place, f"marked_{state}")
    query.feed(2)
    query.hold()
    run = query.run("marked")
    query.reached(run)
    driver = query.driver()
    run.mark("run", state)
    wait_gone(driver)
    assert run.wait(PATIENCE) == state
    assert run.tasks()["cleanup"][0] == "success"
    assert (query.count().seen, query.held_back()) == (0, [])
    after = query.run("after")
    assert after.wait(PATIENCE) == "success", query.log_of(after, "run")
    assert query.count() == query.right()


@pytest.mark.parametrize("state", ["failed", "success"])
def test_a_whole_run_that_is_marked_while_it_works_is_not_shown_as_done(place: Place, state: str) -> None:
    """Airflow skips its ``loaded``, and would take that for a success: nobody would see that nothing came of it."""
    query = Streamed(place, f"marked_whole_{state}")
    query.feed(2)
    query.hold()
    run = query.run("marked")
    query.reached(run)
    driver = query.driver()
    run.mark_run(state)
    wait_gone(driver)
    wait_for(lambda: run.tasks()["cleanup"][0] == "failed", lambda: f"cleanup: {run.tasks()}", PATIENCE)
    assert run.wait(PATIENCE) == "failed"
    assert "clear run with what is downstream of it" in query.log_of(run, "cleanup")
    assert (query.count().seen, query.held_back(), query.events()) == (0, [], [])
    run.clear("run", downstream=True)
    wait_for(lambda: run.tasks()["cleanup"] == ("success", 2), lambda: f"cleanup: {run.tasks()}", PATIENCE)
    assert run.wait(PATIENCE) == "success", query.log_of(run, "run", 2)
    assert query.count() == query.right()
    assert [e["batches"] for e in query.events()] == [[0, 1]]


def test_a_run_whose_dag_is_paused_goes_on_to_its_end(place: Place) -> None:
    query = Streamed(place, "paused_stream")
    query.feed(2)
    query.hold()
    run = query.run("paused")
    query.reached(run)
    place.airflow.patch("/dags/paused_stream", {"is_paused": True})
    query.go()
    run.wait_task("run", "success")
    assert query.count() == query.right()
    place.airflow.patch("/dags/paused_stream", {"is_paused": False})
    assert run.wait(PATIENCE) == "success"
    assert [e["batches"] for e in query.events()] == [[0, 1]]


def test_a_run_that_times_out_leaves_nothing_open(place: Place) -> None:
    query = Streamed(place, "timed_out")
    query.feed(2)
    query.hold()
    late = query.run("late")
    query.reached(late)
    assert late.wait(PATIENCE) == "failed"
    assert (query.count().seen, query.held_back()) == (0, [])
    after = query.run("after", dag="in_time")
    assert after.wait(PATIENCE) == "success", query.log_of(after, "run")
    assert query.count() == query.right()


def test_what_is_wrong_is_said_once_without_retries(place: Place) -> None:
    """A job that is none; and a checkpoint that was deleted, which the ledger finds out."""
    query = Streamed(place, "wrong")
    (query.folder / "no-stream").touch()
    query.feed(1)
    first = query.run("first")
    assert first.wait(PATIENCE) == "failed"
    assert first.tasks()["run"] == ("failed", 1)
    assert "returned a DataFrame that is not streaming" in query.log_of(first, "run")
    (query.folder / "no-stream").unlink()
    second = query.run("second")
    assert second.wait(PATIENCE) == "success", query.log_of(second, "run")
    shutil.rmtree(query.folder / "checkpoint")
    third = query.run("third")
    assert third.wait(PATIENCE) == "failed"
    assert third.tasks()["run"] == ("failed", 1)
    assert "OtherCheckpointError" in query.log_of(third, "run")
    assert (query.count(), query.held_back()) == (query.right(), [])
    for path in (place.airflow.home / "logs").rglob("*.log"):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert SECRET not in text and LEDGER_SECRET not in text, path
