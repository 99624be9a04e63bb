"""SIGKILL of the parts that all runs share, scheduler and triggerer; each is started again, as an init would do it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from tests.airflow.conftest import Place
from tests.airflow.held import Held, right, wait_gone
from tests.airflow.processes import component, kill, restart
from tests.airflow.rest import wait_for

pytestmark = pytest.mark.timeout(600)


def healthy(place: Place, part: str, since: str) -> bool:
    """Whether a part has given signs of life since then."""
    seen = place.airflow.get("/monitor/health")[part]
    return seen["status"] == "healthy" and str(seen[f"latest_{part}_heartbeat"]) > since


def end(place: Place, part: str) -> str:
    """SIGKILL; its children live on as orphans, tasks at work too. Answers when it has last shown life."""
    last = str(place.airflow.get("/monitor/health")[part][f"latest_{part}_heartbeat"])
    kill(component(place.airflow, part))
    return last


def start_again(place: Place, part: str, last: str) -> None:
    """As an init would do it."""
    place.again.append(restart(place.airflow, part))
    wait_for(lambda: healthy(place, part, last), lambda: f"a new {part}", seconds=90)


def swept_across_triggerers(place: Place, run: Held, task: str) -> None:
    """prepare is marked failed while nobody triggers: what it has left is swept by cleanup in the next triggerer."""
    last = end(place, "triggerer")
    process = run.process("writing")
    run.mark(task, "failed")
    wait_gone(process)
    run.go("writing")
    run.wait_task("cleanup", "deferred")
    start_again(place, "triggerer", last)
    assert run.wait() == "failed", run.tasks()
    assert run.count(whole=False) == right(whole=False)
    run.clear(task, downstream=True)
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)


def test_a_killed_scheduler_loses_and_doubles_nothing(place: Place) -> None:
    """Its tasks live on while the next scheduler takes them for lost and starts them again."""
    runs = {m: Held(place, f"scheduler-{m}") for m in ("before-begin", "writing", "after-prepare", "before-commit")}

    def begin(moment: str) -> None:
        runs[moment].hold(moment)
        runs[moment].start()
        runs[moment].reached(moment)

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(begin, runs))
    last = end(place, "scheduler")
    unborn = Held(place, "marked-before-begin")
    unborn.start()
    unborn.mark_run("failed")
    start_again(place, "scheduler", last)
    for moment, run in runs.items():
        run.go(moment)
    for run in runs.values():
        assert run.wait() == "success", run.tasks()
    for run in runs.values():
        assert run.count(whole=True) == right(whole=True), run.id
    # what docs/guarantees.md says under Limits: no task of it is left that could fail; nothing of a load has begun
    assert (unborn.wait(), unborn.attempts()) == ("success", 0)
    assert {state for state, _ in unborn.tasks().values()} == {"skipped"}
    assert unborn.count(whole=False) == right(whole=False)


def test_a_killed_triggerer_loses_nothing(place: Place) -> None:
    """loaded waits in it for another application's transaction, cleanup for its quiet period."""
    waiting, sweeping = Held(place, "triggerer-loaded"), Held(place, "triggerer-cleanup")
    stranger = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "transactional.id": "a-stranger",
            "transaction.timeout.ms": 900_000,  # the minute of the default is over before a busy machine is done here
        }
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    for partition in range(2):
        stranger.produce(waiting.id, b"strange", partition=partition)
    assert stranger.flush(30) == 0
    sweeping.hold("writing")
    for run in (waiting, sweeping):
        run.start()
    waiting.wait_task("loaded", "deferred")
    sweeping.reached("writing")
    last = end(place, "triggerer")
    task = sweeping.process("writing")
    sweeping.mark("prepare", "failed")
    wait_gone(task)
    sweeping.go("writing")
    sweeping.wait_task("cleanup", "deferred")
    start_again(place, "triggerer", last)
    assert sweeping.wait() == "failed", sweeping.tasks()
    assert sweeping.count(whole=False) == right(whole=False)
    assert waiting.tasks()["loaded"][0] == "deferred", "readers are held back still"
    stranger.abort_transaction(30)
    assert waiting.wait() == "success", waiting.tasks()
    assert waiting.count(whole=True) == right(whole=True)


def test_a_run_that_is_deleted_while_it_runs_leaves_what_a_sweep_ends(place: Place) -> None:
    """By way of "queued" Airflow allows it, and has no task left that would clean up.

    What is prepared stays open until the load is begun again, somebody runs ``cleanup``, or its ``hold_time``. There is
    no scheduler meanwhile: Airflow 3.3.2's dies (ObjectDeletedError) when a run is deleted that it is looking at.
    """
    run = Held(place, "deleted-running")
    run.hold("writing")
    run.start()
    run.reached("writing")
    task = run.process("writing")
    last = end(place, "scheduler")
    run.mark_run("queued")
    run.delete()
    wait_gone(task)
    run.go("writing")
    start_again(place, "scheduler", last)
    left = run.count(whole=False)
    assert left.seen == 0
    assert left.open, "nothing was left to clean up: this tests nothing"
    run.sweep()
    assert run.count(whole=False) == right(whole=False)
    run.start()
    assert run.wait() == "success", run.tasks()
    assert run.count(whole=True) == right(whole=True)
