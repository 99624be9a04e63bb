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


def restarted(place: Place, part: str) -> None:
    """SIGKILL, and a new one; its children live on as orphans, tasks at work too."""
    dead, *_ = component(place.airflow, part)
    last = str(place.airflow.get("/monitor/health")[part][f"latest_{part}_heartbeat"])
    kill(dead)
    restart(place.airflow, part)
    wait_for(lambda: healthy(place, part, last), lambda: f"a new {part}", seconds=90)


def test_a_killed_scheduler_loses_and_doubles_nothing(place: Place) -> None:
    """Its tasks live on while the next scheduler takes them for lost and starts them again."""
    runs = {m: Held(place, f"scheduler-{m}") for m in ("before-begin", "writing", "after-prepare", "before-commit")}

    def begin(moment: str) -> None:
        runs[moment].hold(moment)
        runs[moment].start()
        runs[moment].reached(moment)

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(begin, runs))
    restarted(place, "scheduler")
    for moment, run in runs.items():
        run.go(moment)
    for run in runs.values():
        assert run.wait() == "success", run.tasks()
    for run in runs.values():
        assert run.count(whole=True) == right(whole=True), run.id


def test_a_killed_triggerer_loses_nothing(place: Place) -> None:
    """loaded waits in it for another application's transaction, cleanup for its quiet period."""
    waiting, sweeping = Held(place, "triggerer-loaded"), Held(place, "triggerer-cleanup")
    stranger = Producer({"bootstrap.servers": place.bootstrap, "transactional.id": "a-stranger"})
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
    dead, *_ = component(place.airflow, "triggerer")
    last = str(place.airflow.get("/monitor/health")["triggerer"]["latest_triggerer_heartbeat"])
    kill(dead)
    task = sweeping.process("writing")
    sweeping.mark("prepare", "failed")
    wait_gone(task)
    sweeping.go("writing")
    sweeping.wait_task("cleanup", "deferred")
    restart(place.airflow, "triggerer")
    wait_for(lambda: healthy(place, "triggerer", last), lambda: "a new triggerer", seconds=90)
    assert sweeping.wait() == "failed", sweeping.tasks()
    assert sweeping.count(whole=False) == right(whole=False)
    assert waiting.tasks()["loaded"][0] == "deferred", "readers are held back still"
    stranger.abort_transaction(30)
    assert waiting.wait() == "success", waiting.tasks()
    assert waiting.count(whole=True) == right(whole=True)
