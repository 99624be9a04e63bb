"""ExactlyOnceStream: what its author writes reaches its tasks, and what cannot work is refused when it is parsed."""

from __future__ import annotations

import json
import os
import threading
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG, Asset

from airflow_kafka_eos import ExactlyOnceStream
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks import Resolved
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.operators import stream
from airflow_kafka_eos.operators.stream import RunStreamOperator
from airflow_kafka_eos.streams.options import StreamOptions
from airflow_kafka_eos.streams.spec import StreamSpec

GIVEN: dict[str, Any] = {"job": "jobs/orders.py", "topics": ["orders"], "checkpoint": "/checkpoints/orders"}
#: default_args that would break what is promised
OTHER = {"trigger_rule": "all_done", "max_active_tis_per_dag": 9, "load_key": "k", "outlets": [Asset("z")],
         "topics": ["z"], "namespace": "z", "asset_events": False, "durable": True}  # fmt: skip


def group(**given: Any) -> ExactlyOnceStream:
    with DAG("streams", schedule=None, start_date=datetime(2026, 1, 1), default_args=OTHER):
        return ExactlyOnceStream("orders", **GIVEN | given)


def test_the_wiring_that_is_promised() -> None:
    made = group()
    assert [task.task_id for task in (made.run, made.cleanup, made.loaded)] == [
        f"orders.{name}" for name in ("run", "cleanup", "loaded")
    ]
    assert made.run.downstream_task_ids == {"orders.cleanup", "orders.loaded"}
    assert made.cleanup.is_teardown and made.cleanup.on_failure_fail_dagrun and not made.run.is_setup
    assert (made.run.max_active_tis_per_dag, made.loaded.max_active_tis_per_dag) == (1, 1)
    assert made.loaded.trigger_rule == "all_success"
    assert {task.load_name for task in (made.run, made.cleanup, made.loaded)} == {"streams.orders"}
    assert {task.load_key for task in (made.run, made.cleanup, made.loaded)} == {"batches"}
    assert (made.run.outlets, made.cleanup.outlets) == ([], [])
    assert [outlet.name for outlet in made.loaded.outlets] == ["streams.orders"]


def test_what_is_written_reaches_the_driver_and_is_no_secret() -> None:
    made = group(
        job_args={"day": 1}, load_name="n", namespace="ns", hold_time=60, batch_timeout=timedelta(minutes=2),
        commit_timeout=30, two_phase_commit="off", writer="arrow", transaction_naming="incrementing", replay="trust",
        spark_args={"driver_memory": "1g", "retries": 3}, quiet_period=7, deferrable=False, outlets=[Asset("o")],
        asset_server="b:1", spark_conn_id="sc", kafka_conn_id="kc", ledger_conn_id="lc",
    )  # fmt: skip
    spec = StreamSpec.from_json(made.run._spec("dag/run#group=orders").to_json())
    assert (spec.job, spec.job_args) == ("jobs/orders.py", {"day": 1})
    options = StreamOptions.parse(spec.options)
    assert (options.namespace, options.name, options.checkpoint) == ("ns", "n", "/checkpoints/orders")
    assert (options.timeout_ms, options.batch_timeout_ms, options.commit_timeout_ms) == (60_000, 120_000, 30_000)
    assert (options.naming.value, options.replay.value, options.opened_by) == (
        "incrementing", "trust", "dag/run#group=orders",
    )  # fmt: skip
    given = dict(options.given)
    assert {name: given[name] for name in ("topics", "writer", "transaction.two.phase.commit")} == {
        "topics": "orders", "writer": "arrow", "transaction.two.phase.commit": "off",
    }  # fmt: skip
    assert (made.run._driver_memory, made.run.retries, made.run._conn_id) == ("1g", 3, "sc")
    for task in (made.run, made.cleanup, made.loaded):
        assert (task.kafka_conn_id, task.ledger_conn_id, task.namespace) == ("kc", "lc", "ns")
    assert made.cleanup.quiet_period == timedelta(seconds=7)
    assert (made.loaded.deferrable, made.loaded.asset_server) == (False, "b:1")
    assert {outlet.name for outlet in made.loaded.outlets} == {"o", "n"}
    assert group(asset_events=False).loaded.outlets == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"checkpoint": "checkpoints/orders"}, "neither absolute nor a URL"),
        ({"checkpoint": None}, "checkpoint=None is no text"),
        ({"job": "orders"}, "neither a Python file nor a function"),
        ({"job": None}, "one of them must be set"),
        ({"job_args": {"d": datetime(2026, 1, 1)}}, "cannot be written as JSON"),
        ({"topics": []}, "no topic"),
        ({"topics": "orders"}, "is a text"),
        ({"hold_time": 600, "batch_timeout": 60}, "batch_timeout=0:01:00 is less than hold_time=0:10:00"),
        ({"commit_timeout": 0}, "too short"),
        ({"replay": "maybe"}, "replay"),
        ({"transaction_naming": "x"}, "transaction_naming"),
        ({"writer": "confluent", "two_phase_commit": "required"}, 'writer="confluent" cannot do'),
        ({"outlets": "o"}, "no list of assets"),
        ({"asset_events": 1}, "neither True nor False"),
        ({"spark_args": {"topics": ["z"]}}, "spark_args has topics, which run gets from the group"),
        ({"spark_args": {"max_active_tis_per_dag": 2}}, "which run gets from the group"),
        ({"spark_args": {"load_key": "k"}}, "which ExactlyOnceStream has not. Leave it out"),
        ({"spark_args": {"driver_memoryy": "1g"}}, "Did you mean driver_memory"),
        ({"spark_args": {"durable": True}}, "durable"),
        ({"load_key": "k"}, "ExactlyOnceStream has no argument 'load_key'"),
        ({"chekpoint": "/c"}, "Did you mean checkpoint"),
        ({"quiet_period": -1}, "too short"),
        ({"default_args": ["x"]}, "no dict"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        group(**given)
    assert said in str(caught.value)


def test_a_timeout_of_the_whole_run_is_warned_of() -> None:
    with (
        DAG("late", schedule=None, start_date=datetime(2026, 1, 1), dagrun_timeout=timedelta(hours=1)),
        pytest.warns(UserWarning, match="better set execution_timeout"),
    ):
        ExactlyOnceStream("orders", **GIVEN)


def context(map_index: int = -1, try_number: int = 1) -> Any:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="orders.run", map_index=map_index, try_number=try_number)
    return {"ti": ti}


def test_a_mapped_query_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="all map indexes would run one query"):
        group().run.check_key(context(map_index=0))
    group().run.check_key(context())


@pytest.mark.parametrize("extra", [{"deploy-mode": "cluster"}, {}])
def test_a_driver_that_would_outlive_its_task_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: dict[str, str]
) -> None:
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": {
        "bootstrap.servers": "127.0.0.1:1"}}))  # fmt: skip
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    conf = {} if extra else {"spark.submit.deployMode": "cluster"}
    with pytest.raises(AirflowFailException, match="would outlive its Airflow task"):
        group(spark_args={"conf": conf}).run.execute(context())


@pytest.mark.parametrize(("said", "is_final"), [("InDoubtError: who?", True), ("UndecidableError: late", False)])
def test_what_needs_a_person_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, is_final: bool
) -> None:
    """The driver's error, as spark-submit prints it."""
    submit = tmp_path / "spark-submit"
    submit.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    submit.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": {
        "bootstrap.servers": "127.0.0.1:1"}}))  # fmt: skip
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setattr(stream, "_SWEEP_S", 0.1)
    with pytest.raises(AirflowException, match=said.rstrip("?")) as caught:
        group().run.execute(context())
    assert isinstance(caught.value, AirflowFailException) is is_final


def test_a_query_is_one_runs_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who is at work is waited for, and then the task fails for now; it is given back, and ends by time."""
    monkeypatch.setattr(stream, "PATIENCE_S", 0.2)
    monkeypatch.setattr(stream, "_LOOK_S", 0.05)
    resolved = Resolved(KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"}), f"sqlite:///{tmp_path}/l.db")
    Ledger.open(resolved.ledger_url, upgrade=True).close()
    run: RunStreamOperator = group().run
    with run._turn(resolved, "first try 1") as is_ours:
        assert is_ours()
        with pytest.raises(AirflowException, match="is being run by first try 1") as caught, run._turn(resolved, "b"):
            pass
        assert not isinstance(caught.value, AirflowFailException), "a retry has its turn"
        with group(load_name="another").run._turn(resolved, "b"):
            pass
        monkeypatch.setattr(stream, "LEASE_TTL", timedelta(microseconds=1))
        with run._turn(resolved, "b") as is_bs:  # the first one seems to be dead
            monkeypatch.setattr(stream, "LEASE_TTL", timedelta(minutes=1))
            assert is_bs() and not is_ours()
    with run._turn(resolved, "c"):
        pass


def test_a_lease_is_renewed_while_the_driver_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = threading.Event()
    resolved = Resolved(KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"}), f"sqlite:///{tmp_path}/l.db")
    Ledger.open(resolved.ledger_url, upgrade=True).close()
    monkeypatch.setattr(stream, "_RENEW_S", 0.01)
    run = group().run
    with run._turn(resolved, "a"):
        real = Ledger.acquire_lease

        def acquire(self: Ledger, *given: Any, **more: Any) -> str | None:
            asked.set()
            return real(self, *given, **more)

        monkeypatch.setattr(Ledger, "acquire_lease", acquire)
        assert asked.wait(60)
