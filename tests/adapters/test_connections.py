"""Airflow connections become settings, and what is serialised of them holds no secret."""

from __future__ import annotations

import json
import os

import pytest
from airflow.sdk import Connection

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.hooks import KafkaEosHook, ledger_url, registry_settings
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.operators.submitting import environment
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.formats.settings import REGISTRY_VARIABLE, RegistrySettings
from airflow_kafka_eos.triggers import CleanupTrigger, LoadedTrigger

SECRET = "hunter2"
NAMES = {
    "namespace": "n",
    "load_name": "l",
    "load_key": "k",
    "kafka_conn_id": "kafka_default",
    "ledger_conn_id": "ledger",
    "poll_s": 1.0,
}


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        (
            Connection(
                conn_id="c", conn_type="postgres", host="h", login="u", password="p@/w", schema="d", port=5433
            ),
            "postgresql+psycopg2://u:p%40%2Fw@h:5433/d",
        ),
        (Connection(conn_id="c", conn_type="sqlite", host="/data/ledger.db"), "sqlite:////data/ledger.db"),
        (Connection(conn_id="c", conn_type="mysql", host="h", schema="d"), "mysql://h/d"),
        (
            Connection(
                conn_id="c",
                conn_type="postgres",
                host="h",
                schema="d",
                extra='{"sslmode": "require", "other": 1}',
            ),
            "postgresql+psycopg2://h/d?sslmode=require",
        ),
        (
            Connection(conn_id="c", conn_type="postgres", host="/run/pg", port=5433, login="u", schema="d"),
            "postgresql+psycopg2://u@/d?host=%2Frun%2Fpg&port=5433",
        ),
    ],
)
def test_a_ledger_connection_becomes_a_url(connection: Connection, url: str) -> None:
    assert ledger_url(connection) == url


@pytest.mark.parametrize(
    "connection",
    [Connection(conn_id="c", conn_type="http", host="h"), Connection(conn_id="c", conn_type="sqlite")],
)
def test_a_connection_that_cannot_hold_the_ledger_is_refused_by_name(connection: Connection) -> None:
    with pytest.raises(ConfigurationError, match="'c'"):
        ledger_url(connection)


def test_a_kafka_connection_is_read_and_its_secret_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "127.0.0.1:9", "sasl.password": SECRET, "group.id": "x"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    resolved = KafkaEosHook().resolve()
    assert resolved.settings.bootstrap_servers == "127.0.0.1:9"
    assert SECRET not in repr(resolved) + str(resolved) + repr(resolved.settings)


def test_a_kafka_connection_without_servers_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps({"conn_type": "kafka", "extra": {}}))
    with pytest.raises(ConfigurationError, match=r"'empty'.*bootstrap\.servers"):
        KafkaEosHook("empty").resolve()


@pytest.mark.parametrize("local", [True, False])
def test_spark_gets_the_settings_by_environment_and_it_is_restored(
    monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:9", "sasl.password": SECRET})
    registry = RegistrySettings.from_mapping({"url": "http://127.0.0.1:9", "basic.auth.user.info": SECRET})
    before = dict(os.environ)
    texts = {SETTINGS_VARIABLE: settings.to_json(), REGISTRY_VARIABLE: registry.to_json()}
    with pytest.raises(RuntimeError), environment(texts, local):
        assert RegistrySettings.from_environment(os.environ) == registry
        assert KafkaSettings.from_json(os.environ[SETTINGS_VARIABLE]) == settings
        assert ("PYSPARK_PYTHON" in os.environ) is local
        raise RuntimeError
    assert dict(os.environ) == before


def test_a_registry_connection_is_read_and_named_when_it_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"conn_type": "http", "host": "registry", "port": 8081, "login": "me", "password": SECRET}
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps(good))
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", json.dumps({"conn_type": "http"}))
    found = registry_settings("registry")
    assert found.address == "http://registry:8081"
    assert found.for_client()["basic.auth.user.info"] == f"me:{SECRET}"
    assert SECRET not in repr(found)
    with pytest.raises(ConfigurationError, match=r"'nowhere'.*url"):
        registry_settings("nowhere")


@pytest.mark.parametrize(
    "trigger",
    [CleanupTrigger(owner="dag/run", up_to=2, quiet_s=3.0, **NAMES), LoadedTrigger(**NAMES)],  # type: ignore[arg-type]
)
def test_a_trigger_serialises_names_only_and_comes_back(trigger: CleanupTrigger | LoadedTrigger) -> None:
    path, fields = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__name__}"
    again = type(trigger)(**json.loads(json.dumps(fields)))
    assert again.serialize() == (path, fields)
    assert again.load_identity == trigger.load_identity
