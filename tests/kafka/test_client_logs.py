"""kafka-python in a task's log: nothing at INFO, be a broker there or away; that of others is theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from airflow_kafka_eos.errors import BrokerUnavailableError
from airflow_kafka_eos.kafka.client import connections
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.secured import free_port


@pytest.fixture(autouse=True)
def _nobody_has_set_a_level() -> Iterator[None]:
    """A command of ours that a test before has run in this very process has."""
    found = logging.getLogger("kafka")
    before = found.level
    found.setLevel(logging.NOTSET)
    yield
    found.setLevel(before)


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    return f"127.0.0.1:{free_port()}"


def of_kafka(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in caplog.records if r.name.partition(".")[0] == "kafka"]


def ask(address: str) -> None:
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": address}), timeout_s=3) as wire:
        wire.metadata([])


def test_a_client_of_ours_says_nothing_at_info(
    kafka: LocalKafka, nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        ask(kafka.bootstrap_servers)
        with pytest.raises(BrokerUnavailableError, match="cannot be reached"):  # the error has it all
            ask(nobody)
    assert of_kafka(caplog) == []


def test_who_debugs_connections_sees_it_at_debug(nobody: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kafka"), pytest.raises(BrokerUnavailableError):
        ask(nobody)
    found = of_kafka(caplog)
    assert {level for level, _ in found} == {logging.DEBUG}
    assert [text for _, text in found if "Bootstrap" in text or "Connection" in text]


def test_a_client_of_somebody_else_in_the_same_process_is_heard_as_before(
    nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        with pytest.raises(BrokerUnavailableError):
            ask(nobody)
        with pytest.raises(KafkaError):
            KafkaAdminClient(bootstrap_servers=nobody, bootstrap_timeout_ms=1000, request_timeout_ms=1000)
    assert [text for level, text in of_kafka(caplog) if level > logging.INFO]
    assert logging.getLogger("kafka").level == logging.NOTSET, "its level is the user's"


def test_what_nobody_else_tells_keeps_its_level(caplog: pytest.LogCaptureFixture) -> None:
    @connections.at_debug
    def work() -> None:
        logging.getLogger("kafka.future").error("Error processing callback")
        logging.getLogger("kafka.net.transport").error("Connection reset")

    with caplog.at_level(logging.INFO):
        work()
    assert of_kafka(caplog) == [(logging.ERROR, "Error processing callback")]


def test_every_logger_of_its_network_code_is_filtered() -> None:
    """One that is imported later would be missed: none is."""
    import kafka.net.http_connect
    import kafka.net.socks5  # noqa: F401

    for name in connections.loggers():
        found = logging.root.manager.loggerDict[name]
        if isinstance(found, logging.Logger):
            assert any(isinstance(f, connections._AtDebug) for f in found.filters), name
