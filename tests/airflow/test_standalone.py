"""What a person does in Airflow, done by its REST API, on a real scheduler, triggerer and Spark."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, KafkaError, TopicPartition

from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.demo.mishaps import Killer
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.airflow.conftest import SECRET, Place

ENDED = ("success", "failed")


def start(place: Place, dag: str, run_id: str) -> None:
    until = time.monotonic() + 60
    while not any(d["dag_id"] == dag for d in place.airflow.get("/dags")["dags"]):
        errors = place.airflow.get("/importErrors")["import_errors"]
        assert not errors, errors
        assert time.monotonic() < until
        time.sleep(0.5)
    place.airflow.post(f"/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": None})


def wait(place: Place, dag: str, run_id: str) -> str:
    until = time.monotonic() + 240
    while True:
        state: str = place.airflow.get(f"/dags/{dag}/dagRuns/{run_id}")["state"]
        if state in ENDED:
            return state
        assert time.monotonic() < until, f"{dag} {run_id} is still {state}: {states(place, dag, run_id)}"
        time.sleep(0.5)


def states(place: Place, dag: str, run_id: str) -> dict[str, Any]:
    tasks = place.airflow.get(f"/dags/{dag}/dagRuns/{run_id}/taskInstances")["task_instances"]
    return {t["task_id"].removeprefix("load."): (t["state"], t["try_number"]) for t in tasks}


def clear(place: Place, dag: str, run_id: str, task: str, *, downstream: bool) -> None:
    body = {
        "dry_run": False,
        "only_failed": False,
        "dag_run_id": run_id,
        "task_ids": [f"load.{task}"],
        "include_downstream": downstream,
    }
    place.airflow.post(f"/dags/{dag}/clearTaskInstances", body)


def load_of(dag: str, run_id: str) -> LoadIdentity:
    return LoadIdentity("airflow", f"{dag}.load", run_id)


def open_ids(place: Place, dag: str) -> list[str]:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": place.bootstrap})
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace="airflow", ledger_id=place.ledger.ledger_id)
        return coordinator.list_open(f"airflow.{place.ledger.ledger_id}.{dag}%2Eload.")


def read(place: Place, topic: str, isolation: str = "read_committed") -> Counter[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": "test",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(2)])
        found, ended = Counter[str](), 0
        while ended < 2:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is None:
                found[(message.value() or b"").decode()] += 1
            else:
                assert error.code() == KafkaError._PARTITION_EOF
                ended += 1
        return found
    finally:
        consumer.close()


def rows(dag: str, run_id: str) -> Counter[str]:
    return Counter(f"{dag} {run_id} {n}" for n in range(200))


def test_a_load_goes_through_and_clearing_any_task_of_it_writes_nothing_again(place: Place) -> None:
    start(place, "plain", "one")
    assert wait(place, "plain", "one") == "success", states(place, "plain", "one")
    written = read(place, "plain", "read_uncommitted")
    assert read(place, "plain") == written == rows("plain", "one")
    for task, downstream in (("commit", False), ("decide", True), ("prepare", True)):
        before = states(place, "plain", "one")[task][1]
        clear(place, "plain", "one", task, downstream=downstream)
        assert wait(place, "plain", "one") == "success", states(place, "plain", "one")
        assert states(place, "plain", "one")[task][1] > before
    assert read(place, "plain", "read_uncommitted") == written
    assert len(place.ledger.attempts(load_of("plain", "one"))) == 1
    assert open_ids(place, "plain") == []


def test_a_refused_load_fails_the_run_leaves_nothing_and_goes_through_after_a_clear(place: Place) -> None:
    (place.switches / "refuse").touch()
    start(place, "refused", "one")
    assert wait(place, "refused", "one") == "failed"
    seen = states(place, "refused", "one")
    assert seen["decide"] == ("failed", 1), "a refusal is not retried"
    assert (seen["cleanup"][0], seen["loaded"][0]) == ("success", "upstream_failed")
    assert (read(place, "refused"), open_ids(place, "refused")) == (Counter(), [])
    (place.switches / "refuse").unlink()
    clear(place, "refused", "one", "prepare", downstream=True)
    assert wait(place, "refused", "one") == "success", states(place, "refused", "one")
    assert (read(place, "refused"), open_ids(place, "refused")) == (rows("refused", "one"), [])


def test_a_prepare_task_that_dies_by_sigkill_is_retried_and_its_transactions_are_aborted(
    place: Place,
) -> None:
    ref = AttemptRef(load_of("killed", "one"), place.ledger.ledger_id, 1)
    store = ManifestStore(str(place.airflow.home / "kafka_eos_manifests"))
    killer = Killer(ref, Path(store.path(ref)), print)
    killer.start()
    start(place, "killed", "one")
    assert wait(place, "killed", "one") == "success", states(place, "killed", "one")
    killer.stop()
    assert killer.killed is not None
    assert states(place, "killed", "one")["prepare"] == ("success", 2)
    assert read(place, "killed", "read_uncommitted").total() == 400, "the killed attempt was to have written"
    assert (read(place, "killed"), open_ids(place, "killed")) == (rows("killed", "one"), [])


def test_without_deferring_it_is_the_same(place: Place) -> None:
    start(place, "in_worker", "one")
    assert wait(place, "in_worker", "one") == "success", states(place, "in_worker", "one")
    assert (read(place, "in_worker"), open_ids(place, "in_worker")) == (rows("in_worker", "one"), [])
    row = place.ledger.load(load_of("in_worker", "one"))
    assert row is not None and row.state is LoadState.COMMITTED


def test_xcom_shows_the_prepared_states(place: Place) -> None:
    start(place, "plain", "two")
    assert wait(place, "plain", "two") == "success", states(place, "plain", "two")
    path = "/dags/plain/dagRuns/two/taskInstances/load.decide/xcomEntries/return_value"
    value = place.airflow.get(path, deserialize=True, stringify=False)["value"]
    recorded = place.ledger.transactions(load_of("plain", "two"), 1)
    assert value["prepared_transaction_states"] == {
        t.transaction.transactional_id: str(t.transaction.state) for t in recorded
    }
    assert (value["verdict"], value["records"]) == ("commit", 200)


def test_the_plugins_page_shows_the_runs_load_and_its_tasks_lead_there(place: Place) -> None:
    """Owner, XCom and connections as a real run leaves them; tests/plugin has all else of the page."""
    start(place, "plain", "three")
    assert wait(place, "plain", "three") == "success", states(place, "plain", "three")
    url = f"{place.airflow.url}/kafka-eos/api"
    run = {"dag_id": "plain", "run_id": "three"}
    (shown,) = httpx.get(f"{url}/loads", params=run, timeout=60).raise_for_status().json()["loads"]
    assert (shown["state"], shown["records"], shown["dag_id"], shown["run_id"]) == (
        "COMMITTED", 200, "plain", "three"
    )  # fmt: skip
    (look,) = httpx.get(f"{url}/transactions", params=run, timeout=60).raise_for_status().json()["clusters"]
    assert look == {"kafka_conn_id": "kafka_default", "problem": None, "transactions": [], "lag": [], "hanging": []}
    links = place.airflow.get("/dags/plain/dagRuns/three/taskInstances/load.prepare/links", map_index=-1)
    assert links["extra_links"]["Kafka transactions"].endswith("/runs/three/plugin/kafka-transactions-run")


def test_no_secret_is_in_any_log_manifest_ledger_or_xcom(place: Place) -> None:
    """Runs last: whatever the tests above left is searched."""
    searched = 0
    for path in place.airflow.home.rglob("*"):
        if path.is_file() and not path.name.startswith("airflow.db"):
            searched += 1
            assert SECRET.encode() not in path.read_bytes(), path
    assert searched > 10
    with sqlite3.connect(place.airflow.home / "airflow.db") as db:
        for table in ("xcom", "rendered_task_instance_fields", "trigger", "log"):
            assert SECRET not in str(db.execute(f"SELECT * FROM {table}").fetchall()), table


def test_the_provider_is_known_to_airflow(place: Place) -> None:
    names = [p["package_name"] for p in place.airflow.get("/providers", limit=1000)["providers"]]
    assert "airflow-kafka-eos" in names
