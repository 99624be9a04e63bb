"""A triggerer with another Airflow home than the workers: its embedded ledger would be another, empty one."""

from __future__ import annotations

import asyncio
import configparser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.errors import OtherLedgerError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.location import FILE_NAME
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.protocol.repair.restored import set_committed
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.triggers import (
    OTHER_LEDGER,
    CleanupTrigger,
    LoadedTrigger,
    PollingTrigger,
    report_unfinished_loads,
)
from tests.airflow import steps
from tests.airflow.conftest import Place
from tests.airflow.held import Held, right, wait_gone
from tests.airflow.processes import end_session, restart
from tests.airflow.rest import wait_for
from tests.airflow.steps import LOAD, OWNER, a_prepared_load, refused, run, session
from tests.airflow.test_parts_killed import end, healthy, start_again

pytestmark = pytest.mark.timeout(900)
#: without what the fixture home has put in its place
IS_EMBEDDED = Ledger.is_embedded


@pytest.fixture
def elsewhere(place: Place, tmp_path: Path) -> Iterator[Path]:
    """The home of the only triggerer that is left, of the same deployment: one database, one Fernet key."""
    cfg = configparser.RawConfigParser()
    cfg.read(place.airflow.home / "airflow.cfg")
    key = {"AIRFLOW__CORE__FERNET_KEY": cfg.get("core", "fernet_key")}
    last = end(place, "triggerer")
    stranger = restart(place.airflow, "triggerer", {"AIRFLOW_HOME": str(tmp_path)} | key)
    try:
        wait_for(lambda: healthy(place, "triggerer", last), lambda: "the other triggerer", seconds=90)
        yield tmp_path
    finally:
        last = str(place.airflow.get("/monitor/health")["triggerer"]["latest_triggerer_heartbeat"])
        end_session(stranger)
        start_again(place, "triggerer", last)


def test_what_a_triggerer_of_another_home_cannot_see_is_waited_for_in_the_worker(place: Place, elsewhere: Path) -> None:
    """loaded waits for another application's transaction, cleanup for its quiet period: neither is done by mistake."""
    waiting, sweeping = Held(place, "elsewhere-loaded"), Held(place, "elsewhere-cleanup")
    stranger = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "transactional.id": "a-stranger-elsewhere",
            "transaction.timeout.ms": 900_000,  # as long as a busy machine takes
        }
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    for partition in range(2):
        stranger.produce(waiting.id, b"strange", partition=partition)
    assert stranger.flush(30) == 0
    sweeping.hold("writing")
    for one in (waiting, sweeping):
        one.start()
    sweeping.reached("writing")
    task = sweeping.process("writing")
    sweeping.mark("prepare", "failed")
    wait_gone(task)
    sweeping.go("writing")
    assert sweeping.wait() == "failed", sweeping.tasks()
    assert sweeping.tasks()["cleanup"][0] == "success"
    (attempt,) = place.ledger.attempts(sweeping.load)
    row = place.ledger.load(sweeping.load)
    assert row is not None
    assert (row.state, bool(attempt.closed_at)) == (LoadState.ABORTED, True), "it was waited for, to its end"
    assert sweeping.count(whole=False) == right(whole=False)
    waited = lambda: "THE TRIGGERER CANNOT WAIT" in log_of(place, waiting, "loaded")  # noqa: E731
    wait_for(waited, lambda: f"loaded in its worker: {waiting.tasks()}")
    stranger.abort_transaction(30)
    assert waiting.wait() == "success", waiting.tasks()
    assert waiting.count(whole=True) == right(whole=True)
    assert "THE TRIGGERER CANNOT WAIT" in log_of(place, sweeping, "cleanup")
    assert not (elsewhere / FILE_NAME).exists(), "a triggerer makes no ledger"


def log_of(place: Place, one: Held, task: str) -> str:
    path = f"/dags/{one.dag}/dagRuns/{one.id}/taskInstances/load.{task}/logs/1"
    return str(place.airflow.get(path, full_content=True))


FIELDS: dict[str, Any] = {
    "namespace": "airflow", "load_name": LOAD, "kafka_conn_id": "kafka_default", "ledger_conn_id": None
}  # fmt: skip


def event_of(trigger: PollingTrigger) -> dict[str, Any]:
    async def first() -> dict[str, Any]:
        async for event in trigger.run():
            payload: dict[str, Any] = event.payload
            return payload
        raise AssertionError("no event")

    return asyncio.run(asyncio.wait_for(first(), 60))


def triggers(ledger_id: str | None) -> tuple[PollingTrigger, PollingTrigger]:
    """As they are made of what Airflow has kept; without an id of one deferred by a version before."""
    kept = FIELDS | {"load_key": "k", "poll_s": 0.2} | ({} if ledger_id is None else {"ledger_id": ledger_id})
    cleanup = {"owner": OWNER, "up_to": 1, "quiet_s": 0.0, "partitions": []}
    return CleanupTrigger(**kept | cleanup), LoadedTrigger(**kept)


@pytest.mark.parametrize("known", [True, False], ids=["id", "of-a-version-before"])
@pytest.mark.parametrize("there", ["none", "empty", "a-name-alike"])
def test_a_trigger_never_takes_another_ledgers_word_nor_makes_one(
    home: Path,
    kafka: LocalKafka,
    topic: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    there: str,
    known: bool,
) -> None:
    a_prepared_load(home, kafka, "k", topic(), 1)
    with session() as opened:
        ledger_id = opened.ledger.ledger_id
    other = tmp_path_factory.mktemp("other")
    url = f"sqlite:///{other}/{FILE_NAME}"
    if there != "none":
        with Ledger.open(url, upgrade=True) as ledger:
            if there == "a-name-alike":  # begun there once, and nothing more
                ledger.begin(LoadIdentity("airflow", LOAD, "k"), owner=OWNER)
    monkeypatch.setenv("AIRFLOW_HOME", str(other))
    for trigger in triggers(ledger_id if known else None):
        if there == "a-name-alike" and not known:
            if isinstance(trigger, LoadedTrigger):
                continue  # nothing tells it apart
            trigger.up_to = 2  # type: ignore[attr-defined]
        event = event_of(trigger)
        assert event["status"] == OTHER_LEDGER, event
        assert event["fields"] == trigger.fields()
        assert "one ledger" in event["error"]
    assert (other / FILE_NAME).exists() == (there != "none")
    monkeypatch.setenv("AIRFLOW_HOME", str(home))
    event = event_of(triggers(ledger_id if known else None)[0])
    assert (event["status"], event["summary"]["state"]) == ("done", "ABORTED")


def test_a_sensor_goes_on_where_the_trigger_stopped(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """By the attempt that the trigger had: not by a later one of the same run (rule: up-to-its-own-attempt)."""
    from tests.airflow.steps import CONTEXT, operator, state

    a_prepared_load(home, kafka, "k", topic(), 1)
    (trigger, _) = triggers(None)
    event = {"status": OTHER_LEDGER, "error": "…", "fields": trigger.fields() | {"up_to": 0}}
    sensor = operator("cleanup", "k", deferrable=True)
    assert sensor.execute_complete(CONTEXT, event)["state"] == "PREPARED", "nothing of it is touched"
    assert sensor.execute_complete(CONTEXT, event | {"fields": trigger.fields()})["state"] == "ABORTED"
    assert state("k") is LoadState.ABORTED


def test_a_home_that_was_lost_loads_nothing_once_more(
    home: Path,
    kafka: LocalKafka,
    topic: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: same-ledger. Nor does a second scheduler, which takes over on another host."""
    # of this test alone: others have loaded under the common name
    monkeypatch.setattr(steps, "LOAD", "lost home")
    a_prepared_load(home, kafka, "k", topic(), 1)
    for step in ("decide", "commit", "cleanup"):
        run(step, "k")
    monkeypatch.setattr(Ledger, "is_embedded", IS_EMBEDDED)
    assert run("begin", "k")["verdict"] == "commit"
    with session() as opened:
        ledger_id = opened.ledger.ledger_id
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("other")))
    for key in ("k", "of today"):
        assert f"ledger {ledger_id}: 1 (" in refused("begin", key)
    with session() as opened:
        assert opened.ledger.ledger_id != ledger_id
        set_committed(opened, LoadIdentity("airflow", "lost home", "k"), by="ann", reason="the topic has it")
    assert run("begin", "k")["verdict"] == "commit"
    assert run("begin", "of today")["attempt"] == 1


def test_where_there_is_no_ledger_nobody_says_that_all_is_well(home: Path) -> None:
    from airflow.providers.common.compat.sdk import AirflowSkipException

    from tests.airflow.test_maintenance import sweep

    with pytest.raises(OtherLedgerError, match="there is none"):
        asyncio.run(report_unfinished_loads())
    operator, _, context = sweep("airflow")
    with pytest.raises(AirflowSkipException, match="there is no ledger"):
        operator.execute(context)
    assert not (home / FILE_NAME).exists()
    run("begin", "k")
    assert asyncio.run(report_unfinished_loads()).startswith('{"unfinished": 1')
