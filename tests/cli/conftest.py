"""A ledger and a broker for commands, as an operator has them: by environment and arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.protocol.world import World, foreign_transaction


@dataclass
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


@pytest.fixture
def world(
    kafka: LocalKafka, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A load in the default namespace, with a ledger of its own that commands find by the environment."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with connect(settings, url, "airflow") as session:
        yield World(session, settings, topic(partitions=2), LoadIdentity("airflow", "orders", "2026-01-01"))


@pytest.fixture
def at(kafka: LocalKafka) -> tuple[str, str]:
    """The argument that names the cluster."""
    return ("--bootstrap-server", kafka.bootstrap_servers)


@pytest.fixture
def stranger(world: World) -> Iterator[str]:
    name = f"billing-{world.topic}"
    producer = foreign_transaction(world, name)
    yield name
    producer.commit_transaction(30)  # refused, had anybody touched it
