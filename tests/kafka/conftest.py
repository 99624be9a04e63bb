"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.interface import TransactionWriter
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka.writers_support import KINDS, NewWriter, an_id, settings_of, target_of

# the first example loads libraries, and the machine may be busy: no test here is about time
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each of the writers."""
    name: str = request.param
    return name


@pytest.fixture
def settings(kafka: LocalKafka) -> KafkaSettings:
    # librdkafka would wait 30 s for a topic to come back
    return settings_of(kafka.bootstrap_servers, topic_metadata_propagation_max_ms=5000)


@pytest.fixture
def new_writer(kind: str, settings: KafkaSettings, request: pytest.FixtureRequest) -> Iterator[NewWriter]:
    """``new_writer(topics, **changes)``: a writer of its own transactional id, not open yet."""
    made: list[TransactionWriter] = []

    def create(topics: dict[str, Any], **changes: Any) -> tuple[TransactionWriter, TransactionalId]:
        transactional_id = an_id(f"{request.node.name}-{len(made)}")
        writer = make_writer(kind, settings, target_of(transactional_id, topics, **changes))
        made.append(writer)
        return writer, transactional_id

    yield create
    for writer in made:
        writer.abort()
        writer.close()
