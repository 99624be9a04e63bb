"""One broker of each version, one SQLite file and one PostgreSQL database, shared by all cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.victim import NAMESPACE
from tests.crashes.zygote import Zygote, zygote
from tests.ledger.conftest import postgresql

__all__ = ["postgresql"]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Cluster:
    """A broker and what speaks to it; sessions by database, opened once."""

    kafka: LocalKafka
    wire: Wire
    session: Callable[[str], Session]
    #: where others write
    foreign_topic: str

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    def new_topic(self) -> str:
        name = f"crashes-{next(_numbers)}"
        self.kafka.create_topic(name, partitions=2)
        return name


@pytest.fixture(scope="session")
def ledger_urls(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, str]:
    server = request.getfixturevalue("postgresql")
    server.run("CREATE DATABASE crashes TEMPLATE template_ledger")
    urls = {
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('crashes')}/ledger.db",
        "postgresql": server.url("crashes"),
    }
    Ledger.open(urls["sqlite"], upgrade=True).close()
    return urls


@pytest.fixture(scope="session")
def victims() -> Iterator[Zygote]:
    with zygote() as running:
        yield running


class Clusters:
    """One at a time: cases come ordered by version. 4.4's broker is the one of the whole test session."""

    def __init__(self, newest: Callable[[], LocalKafka], urls: dict[str, str]) -> None:
        self._newest = newest
        self._urls = urls
        self._version = ""
        self._running = ExitStack()
        self._cluster: Cluster | None = None

    def of(self, version: str) -> Cluster:
        if self._cluster is None or version != self._version:
            self.close()
            kafka = (
                self._newest()
                if version == "4.4"
                else self._running.enter_context(LocalKafka(version=version, heap="256m"))
            )
            self._cluster = self._running.enter_context(cluster_of(kafka, self._urls))
            self._version = version
        return self._cluster

    def close(self) -> None:
        self._running.close()
        self._cluster = None


@pytest.fixture(scope="session")
def clusters(request: pytest.FixtureRequest, ledger_urls: dict[str, str]) -> Iterator[Clusters]:
    every = Clusters(lambda: request.getfixturevalue("kafka"), ledger_urls)
    request.addfinalizer(every.close)
    yield every


@contextmanager
def cluster_of(kafka: LocalKafka, urls: dict[str, str]) -> Iterator[Cluster]:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with ExitStack() as stack:
        wire = stack.enter_context(Wire(settings))
        sessions: dict[str, Session] = {}

        def session(database: str) -> Session:
            if database not in sessions:
                sessions[database] = stack.enter_context(connect(settings, urls[database], NAMESPACE))
            return sessions[database]

        foreign = f"crashes-foreign-{next(_numbers)}"
        kafka.create_topic(foreign, partitions=1)
        yield Cluster(kafka, wire, session, foreign)
