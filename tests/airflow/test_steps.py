"""What single steps must do in the order that Airflow may run them, on real parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.operators.base import note_deferral
from airflow_kafka_eos.protocol.repair.restored import set_committed
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.transaction import TopicPartition
from tests.airflow.steps import (
    CONTEXT,
    LOAD,
    a_prepared_load,
    connection,
    in_try,
    open_ids,
    operator,
    refused,
    run,
    session,
    state,
)
from tests.protocol.world import foreign_transaction

OTHER_GROUP: Any = CONTEXT | {
    "ti": SimpleNamespace(dag_id="dag", run_id="run", map_index=-1, task_id="another.step")
}


def test_decide_tells_kafka_at_once(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """A paused DAG between decide and commit must not eat the time that the transactions have left."""
    a_prepared_load(home, kafka, "at once", topic(), 3)
    assert len(open_ids("at once")) == 1
    run("decide", "at once")
    for _ in range(100):
        if not open_ids("at once"):
            break
    assert open_ids("at once") == []


def test_what_is_committed_is_told_without_kafka(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """prepare has decided and committed it, in most loads: two tasks need no login, and no broker."""
    a_prepared_load(home, kafka, "told", topic(), 3)
    decided, committed = run("decide", "told"), run("commit", "told")
    connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    assert run("decide", "told") == decided
    assert run("commit", "told") == committed
    assert (committed["records"], len(decided["prepared_transaction_states"])) == (3, 1)


@pytest.mark.parametrize("step", ["begin", "prepare", "decide", "commit"])
def test_another_group_of_the_run_does_not_pass_for_loaded(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], step: str
) -> None:
    """Two loads with one name and key: the second one's data was never written."""
    from airflow.providers.common.compat.sdk import AirflowFailException

    a_prepared_load(home, kafka, step, topic(), 1)
    run("decide", step)
    run("commit", step)
    assert state(step) is LoadState.COMMITTED
    with pytest.raises(AirflowFailException, match="another load of this run"):
        operator(step, step).execute(OTHER_GROUP)
    operator(step, step).execute(CONTEXT)  # the run itself may do all of it again


def a_run(run_type: str, start: str | None = None, end: str | None = None) -> Any:
    """Another run than the one that has written the load."""
    from datetime import datetime

    bounds = [None if bound is None else datetime.fromisoformat(bound) for bound in (start, end)]
    return CONTEXT | {
        "ti": SimpleNamespace(
            dag_id="dag", run_id="another run", map_index=-1, task_id="load.step", get_task_states=lambda **_: {}
        ),
        "dag_run": SimpleNamespace(
            run_type=run_type, logical_date=bounds[0], data_interval_start=bounds[0], data_interval_end=bounds[1]
        ),
    }


DAY = ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00")
HOUR = ("2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+00:00")


def test_a_key_that_was_committed_into_other_topics_does_not_pass_for_this_load(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    """A green run that writes nothing, and then tells readers of a topic where nothing was written."""
    from airflow.providers.common.compat.sdk import AirflowFailException

    name = topic()
    ref, _ = a_prepared_load(home, kafka, "topics", name, 2)
    with session() as opened:
        opened.ledger.decide_commit(ManifestStore(str(home / "kafka_eos_manifests")).read(ref), decided_by="test")
    # decided, not committed yet: it is finished, wherever it was written to
    assert state("topics") is LoadState.COMMITTING
    note = run("begin", "topics", topics=["wrong"])["note"]
    assert f"It was written to {name}, topics= names wrong: it is finished as it was begun" in note
    run("commit", "topics")
    for topics in ([], [name], [name, "one-without-records"]):
        note = operator("begin", "topics", topics=topics).execute(a_run("manual"))["note"]
        assert note.startswith("Already committed by dag/run#group=load, decided at 20"), note
    for topics in (["wrong"], ["wrong", "too"]):
        with pytest.raises(AirflowFailException, match=f"into {name}; topics= names {', '.join(sorted(topics))}"):
            operator("begin", "topics", topics=topics).execute(a_run("manual"))
    assert state("topics") is LoadState.COMMITTED


@pytest.mark.parametrize("run_type", ["scheduled", "backfill", "manual"])
def test_each_step_passes_and_writes_nothing_of_a_load_that_a_person_has_seen_in_its_topics(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], run_type: str
) -> None:
    name, key = topic(), f"seen {run_type}"
    with session() as opened:
        set_committed(opened, LoadIdentity("airflow", LOAD, key), by="ann", reason="restored")
    for step in ("begin", "prepare", "decide", "commit", "cleanup", "loaded"):
        given = {"topics": [name]} if step in ("begin", "prepare") else {}
        operator(step, key, **given).execute(a_run(run_type, *DAY))
    assert state(key) is LoadState.COMMITTED
    with session() as opened:
        assert [row.number for row in opened.ledger.attempts(LoadIdentity("airflow", LOAD, key))] == [1]
        assert opened.partitions.last_stable_offsets([TopicPartition(name, 0)]) == {TopicPartition(name, 0): 0}


def test_only_scheduled_runs_have_an_interval_that_says_which_data_they_are_for(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    from airflow.providers.common.compat.sdk import AirflowFailException

    assert operator("begin", "interval").execute(a_run("scheduled", *DAY))["attempt"] == 1
    for run_type in ("manual", "asset_triggered", "operator_triggered"):
        assert operator("begin", "interval").execute(a_run(run_type, *HOUR))["attempt"] == 1
    for run_type in ("scheduled", "backfill"):
        with pytest.raises(AirflowFailException, match=r"one key would stand for two loads.*another load_name"):
            operator("begin", "interval").execute(a_run(run_type, *HOUR))
    a_prepared_load(home, kafka, "interval", topic(), 1)
    run("decide", "interval")
    run("commit", "interval")
    assert "interval" not in operator("begin", "interval").execute(a_run("manual", *HOUR))["note"]
    assert "interval" not in operator("begin", "interval").execute(a_run("scheduled", *DAY))["note"]
    # an hourly schedule with the day for a key: what the hour is for is not loaded, and that is said
    note = operator("begin", "interval").execute(a_run("scheduled", *HOUR))["note"]
    assert "this run's is 2026-01-01T00:00:00.000000+00:00 to 2026-01-01T01:00:00.000000+00:00" in note
    assert "the data of this run is not loaded" in note


def test_a_key_that_its_template_had_nothing_for_is_refused(home: Path) -> None:
    """``{{ partition_key }}`` of a run without one: all of them would be the load 'None'."""
    from airflow.providers.common.compat.sdk import AirflowFailException

    for step in ("begin", "prepare", "decide"):
        with pytest.raises(AirflowFailException, match="was rendered to 'None'"):
            operator(step, "None").pre_execute(CONTEXT)


def test_loaded_says_at_its_timeout_who_holds_readers_back(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred

    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.sensors import LoadedSensor

    name = topic()
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    stranger = foreign_transaction(SimpleNamespace(settings=settings, topic=name), "slow-service")  # type: ignore[arg-type]
    a_prepared_load(home, kafka, "held", name, 3)
    run("decide", "held")
    run("commit", "held")
    sensor = LoadedSensor(task_id="loaded", load_name=LOAD, load_key="held", timeout=0.1, deferrable=False)
    with pytest.raises(AirflowException, match="slow-service") as caught:
        sensor.execute(CONTEXT)
    assert type(caught.value) is AirflowException, "Airflow tries it again, as retries say"
    # the trigger's timeout, as Airflow hands it over
    context = in_try(1)
    with pytest.raises(TaskDeferred):
        LoadedSensor(task_id="loaded", load_name=LOAD, load_key="held", deferrable=True).execute(context)
    with pytest.raises(AirflowException, match="slow-service"):
        sensor.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    stranger.commit_transaction(30)
    LoadedSensor(task_id="loaded", load_name=LOAD, load_key="held", deferrable=False).execute(CONTEXT)


@pytest.mark.parametrize("noted", [True, False], ids=["a clear", "a version before"])
def test_cleanup_believes_nothing_that_was_found_before_a_clear(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], noted: bool
) -> None:
    """Rule: event-of-its-own-try. Airflow clears a task that runs, and keeps what it came back with."""
    key = f"found before {noted}"
    xcoms: dict[tuple[str, str], Any] = {}
    if noted:
        note_deferral(in_try(1, xcoms))
    a_prepared_load(home, kafka, key, topic(), 1)
    clean: dict[str, Any] = {"load": key, "aborted": [], "problem": None, "state": "ABORTED"}
    event = {"event": {"status": "done", "summary": clean}}
    found = operator("cleanup", key).resume_execution("execute_complete", event, in_try(2, xcoms))
    assert (len(found["aborted"]), state(key), open_ids(key)) == (1, LoadState.ABORTED, [])


def test_the_authors_sql_becomes_true_with_the_load(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DecideLoadOperator with dual_write_sql, rendered as Airflow does it; run again it writes no second row."""
    from airflow_kafka_eos.ledger.database import Database
    from airflow_kafka_eos.ledger.ledger import Ledger

    url = f"sqlite:///{home}/marts.db"
    Ledger.open(url, upgrade=True).close()
    marts = Database(url)
    marts.write(lambda c: c.exec_driver_sql("CREATE TABLE marts (day TEXT, load_key TEXT, records INTEGER)"))
    connection(monkeypatch, "marts", "sqlite", host=f"{home}/marts.db")
    ledger: dict[str, Any] = {"ledger_conn_id": "marts"}
    dual_write_sql = [("INSERT INTO marts VALUES (:day, :load_key, :records)", {"day": "{{ ds }}"})]
    a_prepared_load(home, kafka, "dual", topic(), 3, **ledger)
    for _ in range(2):
        decide = operator("decide", "dual", dual_write_sql=dual_write_sql, **ledger)
        decide.render_template_fields({"ds": "2026-01-01"})
        decide.execute(CONTEXT)
    run("commit", "dual", **ledger)
    assert marts.read(lambda c: c.exec_driver_sql("SELECT * FROM marts").all()) == [("2026-01-01", "dual", 3)]


def test_a_dual_write_that_has_committed_on_its_own_fails_decide_however_often_it_is_cleared(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: dual-write-with-the-decision. Cleanup rolls forward what is decided; the rows are a person's."""
    from airflow_kafka_eos.ledger.ledger import Ledger

    Ledger.open(f"sqlite:///{home}/marts.db", upgrade=True).close()
    connection(monkeypatch, "marts", "sqlite", host=f"{home}/marts.db")
    ledger: dict[str, Any] = {"ledger_conn_id": "marts"}
    a_prepared_load(home, kafka, "split", topic(), 3, **ledger)

    def dual_write(beside: Any, manifest: Any) -> None:
        beside.exec_driver_sql("CREATE TABLE marts (day TEXT)")
        beside.connection.commit()

    for _ in range(2):
        assert "airflow-kafka-eos loads set-finished" in refused("decide", "split", dual_write=dual_write, **ledger)
    assert run("cleanup", "split", **ledger)["state"] == "COMMITTED"
    assert "airflow-kafka-eos loads set-finished" in refused("decide", "split", **ledger)


def test_dual_write_sql_without_a_ledger_of_its_own_is_refused_at_parse() -> None:
    """Its rows would go into the embedded ledger file, where nobody looks for them."""
    from airflow_kafka_eos.errors import ConfigurationError

    for arguments in ({"dual_write_sql": "DELETE FROM marts"}, {"dual_write": print}):
        with pytest.raises(ConfigurationError, match="ledger_conn_id is not"):
            operator("decide", "x", **arguments)
    with pytest.raises(ConfigurationError, match="begins or ends a transaction"):
        operator("decide", "x", dual_write_sql="COMMIT", ledger_conn_id="marts")
