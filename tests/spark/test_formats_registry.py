"""What the registry says before anything is written: a real one, and a gate before it for logins, silence and 5xx."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from airflow_kafka_eos.errors import (
    AccessError,
    ConfigurationError,
    RegistryUnavailableError,
    SchemaRefusedError,
    TransientError,
)
from airflow_kafka_eos.spark.formats.registry import RegisteredSchema, resolve
from airflow_kafka_eos.spark.formats.settings import RegistrySettings, ValueFormat
from tests.spark.formats_registry import HOST, Gate, running_registry

LONG = '{"type":"record","name":"V","fields":[{"name":"a","type":"long"}]}'
TEXT = '{"type":"record","name":"V","fields":[{"name":"a","type":"string"}]}'
SECRET = "p@ss:wörd/1"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture
def client(registry: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry})


@pytest.fixture
def gate(registry: str) -> Iterator[Gate]:
    made = Gate(registry, "user", SECRET)
    yield made
    made.close()


def settings(url: str, **changes: object) -> RegistrySettings:
    quick = {"timeout": 2, "max.retries": 0}
    return RegistrySettings.from_mapping({"url": url} | quick | {k.replace("_", "."): v for k, v in changes.items()})


def ask(
    known: RegistrySettings, topic: str, registration: str = "register", text: str = LONG, kind: str = "AVRO",
    **more: str
) -> RegisteredSchema:
    made = ValueFormat("confluent-avro", registration, **more)
    return resolve(known, made, kind, text, [topic])[topic]


def test_register_once_then_look_up_the_same_id(registry: str, client: SchemaRegistryClient) -> None:
    known = settings(registry)
    with pytest.raises(SchemaRefusedError, match="has no such schema under subject 'once-value'") as caught:
        ask(known, "once", "lookup")
    assert "HTTP 404, error code 40401" in str(caught.value) and registry in str(caught.value)
    made = ask(known, "once")
    assert made.prefix == b"\0" + made.id.to_bytes(4, "big")
    assert ask(known, "once") == ask(known, "once", "lookup") == made
    assert client.get_latest_version("once-value").schema_id == made.id
    with pytest.raises(SchemaRefusedError, match="error code 40403"):
        ask(known, "once", "lookup", TEXT)
    assert client.get_versions("once-value") == [1]  # a look-up registers nothing


def test_latest_takes_the_text_of_the_registry(registry: str, client: SchemaRegistryClient) -> None:
    known = settings(registry)
    with pytest.raises(SchemaRefusedError, match="under subject 'newest-value'"):
        ask(known, "newest", "latest")
    number = client.register_schema("newest-value", Schema(TEXT, "AVRO"))
    found = ask(known, "newest", "latest", LONG)
    assert (found.id, json.loads(found.text)) == (number, json.loads(TEXT))
    with pytest.raises(SchemaRefusedError, match="is of type AVRO, not JSON"):
        ask(known, "newest", "latest", kind="JSON")
    whole = '{"type":"record","name":"W","fields":[{"name":"v","type":"V"}]}'
    client.register_schema("pieces-value", Schema(whole, "AVRO", [SchemaReference("V", "newest-value", 1)]))
    with pytest.raises(SchemaRefusedError, match="refers to other subjects"):
        ask(known, "pieces", "latest")


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [("topic-name", "s-value"), ("record-name", "org.Order"), ("topic-record-name", "s-org.Order")],
)
def test_subjects_are_named_as_confluents_strategies_do(
    registry: str, client: SchemaRegistryClient, strategy: str, subject: str
) -> None:
    text = LONG.replace('"V"', '"Order","namespace":"org"')
    ask(settings(registry), "s", text=text, subject_strategy=strategy, record_name="org.Order")
    assert subject in client.get_subjects()


def test_an_incompatible_schema_is_refused_in_the_words_of_the_registry(
    registry: str, client: SchemaRegistryClient
) -> None:
    known = settings(registry)
    ask(known, "strict")
    client.set_compatibility("strict-value", "BACKWARD")
    with pytest.raises(SchemaRefusedError, match="incompatible with those of subject 'strict-value'") as caught:
        ask(known, "strict", text=TEXT)
    said = str(caught.value)
    assert "HTTP 409" in said and "reader type: STRING not compatible with writer type: LONG" in said
    assert client.get_versions("strict-value") == [1]


def test_a_schema_that_is_none_is_refused(registry: str) -> None:
    with pytest.raises(SchemaRefusedError, match=r"refuses the schema for subject 'none-value' \(HTTP 422"):
        ask(settings(registry), "none", text='{"type":"record","name":"V","fields":[{"name":"a","type":"nosuch"}]}')


def test_the_login_is_used_and_never_shown(gate: Gate) -> None:
    right = settings(gate.url, basic_auth_user_info=f"user:{SECRET}")
    assert ask(right, "login").id > 0
    wrong = settings(gate.url, basic_auth_user_info="user:not-the-password")
    for known in (wrong, settings(gate.url)):
        with pytest.raises(AccessError, match=r"refuses access to subject 'login-value' \(HTTP 401") as caught:
            ask(known, "login")
        assert "not-the-password" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__!r}"


def test_a_login_within_the_url_works_and_is_not_shown(gate: Gate) -> None:
    url = gate.url.replace("http://", "http://user:wrong-one@")
    with pytest.raises(AccessError) as caught:
        ask(settings(url), "login")
    assert "wrong-one" not in str(caught.value) and f"the schema registry at {gate.url} " in str(caught.value)


def test_nobody_there_is_worth_another_try() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))  # bound, and not listening
        url = f"http://{HOST}:{taken.getsockname()[1]}"
        with pytest.raises(RegistryUnavailableError, match="did not answer for subject 't-value'") as caught:
            ask(settings(url), "t")
    assert isinstance(caught.value, TransientError)
    assert url in str(caught.value) and "refused" in str(caught.value)


def test_a_silent_registry_is_waited_for_no_longer_than_the_timeout(gate: Gate) -> None:
    gate.silent = True
    release = threading.Timer(30, lambda: setattr(gate, "silent", False))  # bounded, should the timeout not work
    release.start()
    known = settings(gate.url, timeout=0.3)
    with pytest.raises(RegistryUnavailableError, match="ReadTimeout"):
        ask(known, "t")
    release.cancel()


def test_without_settings_of_ones_own_there_is_a_timeout(registry: str) -> None:
    assert RegistrySettings.from_mapping({"url": registry}).for_client()["timeout"] == 10


@pytest.mark.parametrize("status", [429, 500, 503])
def test_later_is_transient_and_tried_again_first(gate: Gate, status: int) -> None:
    gate.status = status
    known = settings(gate.url, max_retries=1, retries_wait_ms=1)
    with pytest.raises(RegistryUnavailableError, match=f"HTTP {status}, error code 50001: said by the gate"):
        ask(known, "t")
    assert len(gate.seen) == 2


def test_an_address_that_is_no_registry(registry: str, gate: Gate) -> None:
    with pytest.raises(ConfigurationError, match="does not answer as a schema registry does") as caught:
        ask(settings(registry.replace("ccompat/v7", "nosuch")), "t")
    assert "/apis/ccompat/v7" in str(caught.value)
    gate.status = 200  # and no JSON of a registry
    with pytest.raises(ConfigurationError, match="does not answer as a schema registry does"):
        ask(settings(gate.url), "t", "latest")


def test_tls_where_there_is_none_is_no_passing_trouble(registry: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be trusted or does not speak TLS"):
        ask(settings(registry.replace("http://", "https://")), "t")


def test_settings_that_contradict_each_other_are_said_without_their_values(
    registry: str, tmp_path: Path
) -> None:
    url = registry.replace("http://", "http://user:hidden-one@")
    with pytest.raises(ConfigurationError, match="several logins") as caught:
        ask(settings(url, basic_auth_user_info="user:hidden-two"), "t")
    assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="do not work"):
        ask(settings(registry, ssl_ca_location=str(tmp_path / "nowhere.pem")), "t")


def test_a_refused_topic_stops_the_others(registry: str, client: SchemaRegistryClient) -> None:
    made = ValueFormat("confluent-avro", "lookup")
    with pytest.raises(SchemaRefusedError, match="'absent-value'"):
        resolve(settings(registry), made, "AVRO", LONG, ["once", "absent"])
