"""Brokers that take records for partitions that no coordinator knows of, as all did before KIP-890."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.protocol.world import World

_numbers = itertools.count(1)


@contextmanager
def lax_kafka(version: str) -> Iterator[LocalKafka]:
    with LocalKafka(
        version=version, broker_settings={"transaction.partition.verification.enable": "false"}
    ) as running:
        yield running


@contextmanager
def session_on(kafka: LocalKafka, ledger_url: str) -> Iterator[Session]:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with connect(settings, ledger_url, "test") as opened:
        yield opened


def world_on(kafka: LocalKafka, session: Session, name: str, *, partitions: int) -> World:
    """A new load ``name`` with a new topic there."""
    number = next(_numbers)
    topic = f"{name}-{number}"
    kafka.create_topic(topic, partitions=partitions)
    load = LoadIdentity("test", name, f"key-{number}")
    return World(session, session.partitions.wire.settings, topic, load)
