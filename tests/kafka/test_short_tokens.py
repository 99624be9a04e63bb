"""Tokens that live for seconds, on a broker that checks their signature and ends connections with them (KIP-368)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError
from airflow_kafka_eos.hooks import KafkaEosHook
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.client import token_sources
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import TopicPartition
from tests.kafka.arrow_support import batch
from tests.kafka.identities import Logins, TokenEndpoint, broker_with_logins
from tests.kafka.open_transactions import an_id, coordinator_of, open_one
from tests.kafka.token_providers import signed
from tests.kafka.writers_support import KINDS, consume, end, target_of
from tests.kafka.writers_support import an_id as a_writers_id

pytestmark = pytest.mark.broker

LIFE_S = 6
HERE = "tests.kafka.token_providers."


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with broker_with_logins(tmp_path_factory.mktemp("logins")) as running:
        yield running


@pytest.fixture
def settings(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> KafkaSettings:
    monkeypatch.setattr(token_sources, "_sources", {})
    return KafkaSettings.from_mapping(logins.by_function(LIFE_S))


def ask_once(wire: Wire) -> None:
    """One request over the connection that is there; nothing tries again."""
    request = ApiVersionsRequest(client_software_name="t", client_software_version="0", min_version=3)
    assert wire.send_to_broker(1, request).error_code == 0


def test_a_wire_that_nobody_looked_at_for_longer_than_its_token_lives(logins: Logins, settings: KafkaSettings) -> None:
    """As Airflow's steps have them, which wait between two questions. It answers, and by the same connection."""
    with Wire(settings) as wire:
        ask_once(wire)
        connection = wire._manager.get_connection(1)
        for _ in range(2):
            time.sleep(LIFE_S + 2)
            ask_once(wire)
            assert wire._manager.get_connection(1) is connection


def test_the_broker_ends_a_connection_with_its_token(settings: KafkaSettings) -> None:
    """Else all the others prove nothing."""
    with Wire(settings) as wire:
        ask_once(wire)
        wire._manager.get_connection(1)._reauth.cancel()
        time.sleep(LIFE_S + 2)
        with pytest.raises(BrokerUnavailableError):
            ask_once(wire)


def test_a_pool_that_is_opened_after_a_token_has_ended(settings: KafkaSettings) -> None:
    """It sends before it looks, and nothing tries again here."""
    request = ApiVersionsRequest(client_software_name="t", client_software_version="0", min_version=3)
    with Wire(settings) as wire:
        ask_once(wire)
        time.sleep(LIFE_S + 2)
        pool = wire.pool()
        pool.submit(1, request, "asked", timeout_s=10)
        (reply,) = pool.wait(10)
        assert reply.error is None
        pool.close()


def test_a_wire_at_work_logs_in_again_and_again(settings: KafkaSettings) -> None:
    with Wire(settings) as wire:
        ask_once(wire)
        connection = wire._manager.get_connection(1)
        until = time.monotonic() + 2.5 * LIFE_S
        while time.monotonic() < until:
            ask_once(wire)
            time.sleep(0.2)
        assert wire._manager.get_connection(1) is connection


def test_many_ends_after_a_token_has_ended(settings: KafkaSettings) -> None:
    """The pool sends before it looks."""
    with Wire(settings) as wire:
        transactions = [open_one(wire, an_id("ends", n), TopicPartition("orders", 0)) for n in range(40)]
        time.sleep(LIFE_S + 2)
        answers = coordinator_of(wire).end_many(transactions, Verdict.COMMIT)
    assert list(answers.values()) == [EndAnswer.DONE] * 40


def test_airflows_side_by_its_own_connection(
    logins: Logins, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the Kafka provider's function for it, one session before and after."""
    extra = logins.by_function(LIFE_S)
    monkeypatch.setenv("AIRFLOW_CONN_TOKENS", json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "ledger.db")}))
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", extra["oauth_cb"])
    before = logins.tokens_made().get(os.getpid(), 0)
    resolved = KafkaEosHook("tokens", "ledger").resolve()
    assert resolved.settings._callback is signed
    Ledger.open(resolved.ledger_url, upgrade=True).close()
    with resolved.session("airflow") as session:
        wire = session.partitions.wire
        transaction = open_one(wire, an_id("connection"), TopicPartition("orders", 0))
        time.sleep(LIFE_S + 2)
        coordinator = coordinator_of(wire)
        answers = coordinator.end_many([transaction], Verdict.ABORT)
        assert list(answers.values()) == [EndAnswer.DONE]
    assert logins.tokens_made()[os.getpid()] - before >= 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_outlives_its_tokens(logins: Logins, settings: KafkaSettings, kind: str) -> None:
    """Before its first row, between two, while it writes, and before it reports."""
    topic = f"outlives-{kind}"
    logins.plain.create_topic(topic, partitions=2)
    before = sum(logins.tokens_made().values())
    writer = make_writer(kind, settings, target_of(a_writers_id(f"outlives {kind}"), {topic: 2}))
    writer.open()
    time.sleep(LIFE_S + 2)
    writer.write(batch(value=[b"first"]))
    time.sleep(LIFE_S + 2)
    written = 1
    until = time.monotonic() + 1.5 * LIFE_S
    while time.monotonic() < until:
        writer.write(batch(value=[b"%d" % written]))
        written += 1
        time.sleep(0.01)
    time.sleep(LIFE_S + 2)
    prepared, writes = writer.prepare()
    writer.close()
    end(settings, prepared)
    assert sum(w.records for w in writes) == written
    found = consume(logins.plain.bootstrap_servers, topic, 2, written, "read_committed")
    assert len(found) == written
    assert sum(logins.tokens_made().values()) - before >= 3


def test_a_wire_that_was_kept_for_longer_than_its_token_lives(logins: Logins, settings: KafkaSettings) -> None:
    """As the tasks of a query have it, whose batches come when they come: one of them when a login is due."""
    logins.plain.create_topic("kept", partitions=2)
    for number, rest_s in enumerate((0, LIFE_S - 0.5, LIFE_S + 2)):
        time.sleep(rest_s)
        target = target_of(a_writers_id(f"kept {number}"), {"kept": 2})
        with closing(make_writer("arrow", settings, target, keeps_wire=True)) as writer:
            writer.open()
            writer.write(batch(value=[b"one"]))
            end(settings, writer.prepare()[0])
    assert len(consume(logins.plain.bootstrap_servers, "kept", 2, 3, "read_committed")) == 3


def test_the_broker_does_look_at_the_tokens(logins: Logins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sources, "_sources", {})
    strangers = logins.file("stranger.key", TokenEndpoint().key_pem())
    changed = logins.by_function(60) | {"sasl.oauthbearer.config": f"{strangers} 60"}
    with Wire(KafkaSettings.from_mapping(changed)) as wire, pytest.raises(AccessError, match="oauth_cb"):
        wire.broker_ids()


@pytest.mark.parametrize(
    ("name", "said"),
    [("raising", "failed: PermissionError"), ("hanging", r"has not answered for 0\.5 s")],
)
@pytest.mark.parametrize("first", ["wire", *KINDS])
def test_a_provider_in_trouble_is_told_before_anything_is_written(
    logins: Logins, name: str, said: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, whoever logs in first: nobody tries for the minute that a broker may be away."""
    monkeypatch.setattr(token_sources, "_sources", {})
    monkeypatch.setattr(token_sources, "ANSWER_S", 0.5)
    settings = KafkaSettings.from_mapping(logins.by_function(60) | {"oauth_cb": f"{HERE}{name}"})
    target = target_of(a_writers_id("trouble"), {"orders": 1})
    works: dict[str, Callable[[], object]] = {"wire": Wire(settings).broker_ids}
    works |= {kind: make_writer(kind, settings, target).open for kind in KINDS}
    told = rf"^the token provider '{HERE}{name}' \(oauth_cb\) {said}"
    with pytest.raises(BrokerUnavailableError, match=told) as caught:
        works[first]()
    assert "brokers are up" not in str(caught.value)
