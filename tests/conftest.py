"""Real parts that the whole test session shares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka_tools import Shell
from tests.postgresql import PostgreSQL, postgresql_server
from tests.secured import Secured, secured_broker

#: Retention takes what is older than its topic keeps, in a round every five minutes: records of 1970, say, while a
#: test reads them. No such round comes here; a test about retention deletes records itself.
NO_RETENTION_ROUNDS = {"log.initial.task.delay.ms": "1000000000", "log.retention.check.interval.ms": "1000000000"}


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """One 4.4.0 broker. A test that kills brokers or changes their settings starts its own."""
    with LocalKafka(version="4.4.0", broker_settings=NO_RETENTION_ROUNDS) as running:
        yield running


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell with Kafka's own tools, and ours, on its PATH."""
    return Shell.at(tmp_path_factory.mktemp("shell"))


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One broker that asks for a login; see :class:`tests.secured.Secured`."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """One PostgreSQL; each test makes a database of its own in it."""
    with postgresql_server() as running:
        yield running


@pytest.fixture(scope="session")
def _topic_numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def topic(kafka: LocalKafka, _topic_numbers: Iterator[int]) -> Callable[..., str]:
    """A factory: ``topic(partitions=1, config=None, prefix="topic")`` creates a fresh topic, returns its name."""

    def create(partitions: int = 1, config: Mapping[str, str] | None = None, prefix: str = "topic") -> str:
        name = f"{prefix}-{next(_topic_numbers)}"
        kafka.create_topic(name, partitions=partitions, config=config)
        return name

    return create
