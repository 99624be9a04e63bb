"""What a real scheduler, triggerer and Spark make of a load, besides the table of scenarios.py."""

from __future__ import annotations

import httpx

from airflow_kafka_eos.load import LoadIdentity, LoadState
from tests.airflow.conftest import SECRET, Place
from tests.airflow.counting import Count, count
from tests.airflow.rest import Run
from tests.airflow.stored import contents, stored

RECORDS = 200


def load_of(run: Run) -> LoadIdentity:
    return LoadIdentity("airflow", f"{run.dag}.load", run.id)


def counted(place: Place, run: Run, *, whole: bool) -> Count:
    expected = [f"{run.dag} {run.id} {n}" for n in range(RECORDS)] if whole else []
    return count(place.bootstrap, run.dag, expected, ids=f".{run.dag}%2Eload.")


def right(*, whole: bool) -> Count:
    return Count(RECORDS if whole else 0, 0, 0, 0, ())


def test_a_refused_load_fails_the_run_leaves_nothing_and_goes_through_after_a_clear(place: Place) -> None:
    (place.switches / "refuse").touch()
    run = Run(place.airflow, "refused", "one")
    run.start()
    assert run.wait() == "failed"
    seen = run.tasks()
    assert seen["decide"] == ("failed", 1), "a refusal is not retried"
    assert (seen["cleanup"][0], seen["loaded"][0]) == ("success", "upstream_failed")
    assert counted(place, run, whole=False) == right(whole=False)
    (place.switches / "refuse").unlink()
    run.clear("prepare", downstream=True)
    assert run.wait() == "success", run.tasks()
    assert counted(place, run, whole=True) == right(whole=True)


def test_a_missing_topic_fails_begin_and_is_loaded_into_once_it_is_there(place: Place) -> None:
    """No JVM starts for it, and no retry waits for what nobody makes."""
    run = Run(place.airflow, "at_once", "no-topic")
    (place.switches / run.id).mkdir()
    run.start()
    assert run.wait() == "failed"
    seen = run.tasks()
    assert seen["begin"] == ("failed", 1), seen
    assert (seen["prepare"][0], seen["loaded"][0]) == ("upstream_failed", "upstream_failed"), seen
    load = load_of(run)
    (row,) = place.ledger.attempts(load)
    assert row.reason.startswith("TopicError: topics=['no-topic']: topic no-topic does not exist on 127.0.0.1"), row
    assert not row.is_submitted
    place.kafka.create_topic(run.id, partitions=2)
    run.clear("begin", downstream=True)
    assert run.wait() == "success", run.tasks()
    expected = [f"{run.id} {n}" for n in range(RECORDS)]
    assert count(place.bootstrap, run.id, expected, ids=f".{run.id}.") == right(whole=True)


def test_without_deferring_it_is_the_same(place: Place) -> None:
    run = Run(place.airflow, "in_worker", "one")
    run.start()
    assert run.wait() == "success", run.tasks()
    assert counted(place, run, whole=True) == right(whole=True)
    row = place.ledger.load(load_of(run))
    assert row is not None and row.state is LoadState.COMMITTED


def test_xcom_shows_the_prepared_states(place: Place) -> None:
    run = Run(place.airflow, "plain", "one")
    run.start()
    assert run.wait() == "success", run.tasks()
    path = "/dags/plain/dagRuns/one/taskInstances/load.decide/xcomEntries/return_value"
    value = place.airflow.get(path, deserialize=True, stringify=False)["value"]
    recorded = place.ledger.transactions(load_of(run), 1)
    assert value["prepared_transaction_states"] == {
        t.transaction.transactional_id: str(t.transaction.state) for t in recorded
    }
    assert (value["verdict"], value["records"]) == ("commit", RECORDS)


def test_the_plugins_page_shows_the_runs_load_and_its_tasks_lead_there(place: Place) -> None:
    """Owner, XCom and connections as a real run leaves them; tests/plugin has all else of the page."""
    done = Run(place.airflow, "plain", "three")
    done.start()
    assert done.wait() == "success", done.tasks()
    url = f"{place.airflow.url}/kafka-eos/api"
    run = {"dag_id": "plain", "run_id": "three"}
    (shown,) = httpx.get(f"{url}/loads", params=run, timeout=60).raise_for_status().json()["loads"]
    assert (shown["state"], shown["records"], shown["dag_id"], shown["run_id"]) == (
        "COMMITTED", RECORDS, "plain", "three"
    )  # fmt: skip
    (look,) = httpx.get(f"{url}/transactions", params=run, timeout=60).raise_for_status().json()["clusters"]
    seen: dict[str, list[object]] = {"transactions": [], "lag": [], "hanging": [], "hidden": []}
    assert look == {"kafka_conn_id": "kafka_default", "problem": None, **seen}
    links = place.airflow.get("/dags/plain/dagRuns/three/taskInstances/load.prepare/links", map_index=-1)
    assert links["extra_links"]["Kafka transactions"].endswith("/runs/three/plugin/kafka-transactions-run")


def test_no_secret_is_in_any_log_manifest_ledger_or_xcom(place: Place) -> None:
    """Runs last: whatever the tests above and the other modules left is searched."""
    searched = 0
    for path, content in contents(place.airflow.home):
        assert SECRET.encode() not in content, path
        searched += 1
    assert searched > 10
    for table in ("xcom", "rendered_task_instance_fields", "trigger", "log"):
        assert SECRET not in str(stored(place.airflow, f"SELECT * FROM {table}")), table


def test_the_provider_is_known_to_airflow(place: Place) -> None:
    names = [p["package_name"] for p in place.airflow.get("/providers", limit=1000)["providers"]]
    assert "airflow-kafka-eos" in names
