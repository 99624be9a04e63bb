"""A recorder, and worlds that write with the default writer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.victim import NAMESPACE, Place
from tests.model.recorder import Recorder

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def model_ledger_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('model')}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    return url


@pytest.fixture(scope="package")
def old_kafka() -> Iterator[LocalKafka]:
    """Transaction version 1: an end keeps the epoch."""
    with LocalKafka(version="3.9", heap="256m") as running:
        yield running


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> LocalKafka:
    """The session's 4.4, or 3.9 where a test's parameter asks for it."""
    found: LocalKafka = request.getfixturevalue(
        "old_kafka" if getattr(request, "param", "4.4") == "3.9" else "kafka"
    )
    return found


@pytest.fixture
def open_session(broker: LocalKafka, model_ledger_url: str) -> Iterator[Callable[[], Session]]:
    """A session per call, as of a process of its own."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(settings, model_ledger_url, NAMESPACE))


@pytest.fixture
def new_world(
    broker: LocalKafka, open_session: Callable[[], Session], tmp_path: Path
) -> Callable[..., Place]:
    """``new_world(scope)``: a load of its own on a topic of its own."""

    def create(scope: TransactionScope = TransactionScope.TASK, timeout_ms: int = 600_000) -> Place:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
        key = f"traces-{next(_numbers)}"
        broker.create_topic(key, partitions=2)
        load = LoadIdentity(NAMESPACE, "crashes", key)
        return Place(open_session(), settings, key, load, timeout_ms=timeout_ms, scope=scope, folder=tmp_path)

    return create


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)
