"""A recorder, and worlds that write with the default writer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_kafka_eos.kafka.settings import KafkaSettings
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


@pytest.fixture
def open_session(kafka: LocalKafka, model_ledger_url: str) -> Iterator[Callable[[], Session]]:
    """A session per call, as of a process of its own."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(settings, model_ledger_url, NAMESPACE))


@pytest.fixture
def new_world(
    kafka: LocalKafka, open_session: Callable[[], Session], topic: Callable[..., str], tmp_path: Path
) -> Callable[..., Place]:
    """``new_world(scope)``: a load of its own on a topic of its own."""

    def create(scope: TransactionScope = TransactionScope.TASK, timeout_ms: int = 600_000) -> Place:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        load = LoadIdentity(NAMESPACE, "traces", f"key-{next(_numbers)}")
        return Place(
            open_session(), settings, topic(2), load, timeout_ms=timeout_ms, scope=scope, folder=tmp_path
        )

    return create


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)
