"""Section [kafka_eos] of Airflow's configuration: read, validated, and weaker than arguments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad
from airflow_kafka_eos.config import OPTIONS, deferrable, optional, provider_config, setting
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.get_provider_info import LEDGER_CONNECTION, get_provider_info
from airflow_kafka_eos.hooks.kafka_eos import KafkaEosLedgerHook
from airflow_kafka_eos.ledger.location import BACKENDS, LEDGER_CONN_TYPE
from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator

SET = {
    "namespace": "payments",
    "kafka_conn_id": "kafka_prod",
    "ledger_conn_id": "the_ledger",
    "manifest_dir": "/shared/manifests",
    "hold_time": "1800",
    "margin": "90.5",
    "quiet_period": "7",
    "paused_after": "600",
    "writer_deadline": "7200",
    "two_phase_commit": "off",
    "transaction_naming": "pooling",
    "deferrable": "False",
}


def configure(monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
    for key, text in options.items():
        monkeypatch.setenv(f"AIRFLOW__KAFKA_EOS__{key.upper()}", text)


def group(**arguments: Any) -> ExactlyOnceLoad:
    with DAG("configured", schedule=None):
        return ExactlyOnceLoad("load", job="j.py", topics=["t"], **arguments)


def seen(load: ExactlyOnceLoad) -> dict[str, Any]:
    every = (load.begin, load.prepare, load.decide, load.commit, load.cleanup, load.loaded)
    ((namespace, kafka, ledger),) = {(t.namespace, t.kafka_conn_id, t.ledger_conn_id) for t in every}
    ((manifests,),) = {(load.prepare.manifest_dir,), (load.decide.manifest_dir,)}
    (waits,) = {load.cleanup.deferrable, load.loaded.deferrable}
    return {
        "namespace": namespace,
        "kafka_conn_id": kafka,
        "ledger_conn_id": ledger,
        "manifest_dir": manifests,
        "hold_time": load.prepare.hold_time,
        "margin": load.decide.margin,
        "quiet_period": load.cleanup.quiet_period,
        "paused_after": SweepLeftoversOperator(task_id="sweep").paused_after,
        "writer_deadline": load.prepare.writer_deadline,
        "two_phase_commit": load.prepare.two_phase_commit,
        "transaction_naming": load.prepare.transaction_naming,
        "deferrable": waits,
    }


def test_every_option_reaches_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SET.keys() == OPTIONS.keys()
    configure(monkeypatch, **SET)
    assert seen(group()) == {
        "namespace": "payments",
        "kafka_conn_id": "kafka_prod",
        "ledger_conn_id": "the_ledger",
        "manifest_dir": "/shared/manifests",
        "hold_time": timedelta(minutes=30),
        "margin": timedelta(seconds=90.5),
        "quiet_period": timedelta(seconds=7),
        "paused_after": timedelta(minutes=10),
        "writer_deadline": timedelta(hours=2),
        "two_phase_commit": "off",
        "transaction_naming": "pooling",
        "deferrable": False,
    }


def test_arguments_win_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, **SET)
    given: dict[str, Any] = {
        "namespace": "mine",
        "kafka_conn_id": "my_kafka",
        "ledger_conn_id": "my_ledger",
        "manifest_dir": "/mine",
        "hold_time": timedelta(minutes=5),
        "margin": timedelta(seconds=5),
        "quiet_period": timedelta(0),
        "two_phase_commit": "auto",
        "transaction_naming": "incrementing",
        "deferrable": True,
    }
    found = seen(group(**given))
    assert {k: found[k] for k in given} == given


def test_without_it_the_defaults_are_those_of_the_documentation() -> None:
    found = seen(group())
    assert (found["namespace"], found["ledger_conn_id"], found["manifest_dir"]) == ("airflow", None, None)
    assert (found["hold_time"], found["margin"]) == (timedelta(minutes=15), timedelta(minutes=1))
    assert (found["writer_deadline"], found["quiet_period"]) == (timedelta(days=1), timedelta(seconds=10))
    assert (found["paused_after"], found["deferrable"]) == (timedelta(minutes=15), True)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("hold_time", "15m"),
        ("margin", "0"),
        ("quiet_period", "-1"),
        ("writer_deadline", "1e400"),
        ("writer_deadline", "nan"),
        ("two_phase_commit", "require"),
        ("transaction_naming", "pool"),
        ("deferrable", "maybe"),
        ("manifest_dir", "manifests"),
        ("namespace", "a\x00b"),
    ],
)
def test_a_value_that_is_none_is_refused_by_section_key_and_value(
    monkeypatch: pytest.MonkeyPatch, key: str, text: str
) -> None:
    if "\x00" in text:  # not from an environment variable, from airflow.cfg
        monkeypatch.setattr("airflow.sdk.configuration.conf.get", lambda *_, **__: text)
    else:
        configure(monkeypatch, **{key: text})
    with pytest.raises(ConfigurationError) as caught:
        setting(key)
    said = str(caught.value)
    assert f"[kafka_eos] {key} = {text!r}" in said
    assert f"AIRFLOW__KAFKA_EOS__{key.upper()}" in said and OPTIONS[key].example in said


def test_a_margin_of_the_configuration_must_fit_the_hold_time(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, margin="1000")
    with pytest.raises(ConfigurationError, match="margin=0:16:40 does not fit hold_time=0:15:00"):
        group()


def test_airflows_own_switch_is_respected_where_somebody_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default is False, and Airflow writes that into airflow.cfg by itself: that alone says nothing."""
    assert deferrable() is True
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "False")
    assert deferrable() is False and deferrable(True) is True
    configure(monkeypatch, deferrable="True")
    assert deferrable() is True


def test_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, ledger_conn_id=" ", namespace="")
    assert optional("ledger_conn_id") is None
    assert setting("namespace") == "airflow"


def test_what_the_provider_tells_airflow_fits_airflows_schemas() -> None:
    import json
    from importlib.resources import files

    import jsonschema

    for name in ("provider_info.schema.json", "provider.yaml.schema.json"):
        schema = json.loads(files("airflow").joinpath(name).read_text())
        kind = schema["properties"]["connection-types"] | {"definitions": schema.get("definitions", {})}
        jsonschema.validate([LEDGER_CONNECTION], kind)
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)
    options = provider_config()["kafka_eos"]["options"]
    assert all(o["description"] and o["example"] and isinstance(o["default"], str) for o in options.values())


def test_the_form_and_the_hook_name_the_same() -> None:
    module, _, name = LEDGER_CONNECTION["hook-class-name"].rpartition(".")
    assert (module, name) == (KafkaEosLedgerHook.__module__, KafkaEosLedgerHook.__name__)
    assert LEDGER_CONNECTION["connection-type"] == KafkaEosLedgerHook.conn_type == LEDGER_CONN_TYPE
    assert LEDGER_CONNECTION["hook-name"] == KafkaEosLedgerHook.hook_name
    assert tuple(LEDGER_CONNECTION["conn-fields"]["backend"]["schema"]["enum"]) == BACKENDS
