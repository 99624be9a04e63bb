"""One place of a query: its topic, its ledger, its checkpoint; drivers are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values
from tests.spark.conftest import REPOSITORY, spark_environment
from tests.streams.query import ROWS

NAMESPACE, NAME = "airflow", "numbers"
PARTITIONS = 2


@dataclass
class Place:
    """Where a query runs."""

    kafka: LocalKafka
    topic: str
    ledger_url: str
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environ |= {"AIRFLOW_KAFKA_EOS_LEDGER": self.ledger_url}

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self, batches: int, *, kill: str = "", **given: Any) -> subprocess.CompletedProcess[str]:
        """A driver, until so many batches of the query are done, or it dies."""
        process = self.start(batches, kill=kill, **given)
        out, err = process.communicate(timeout=1200)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, batches: int, *, kill: str = "", **given: Any) -> subprocess.Popen[str]:
        """The same, at work."""
        spec = {
            "checkpoint": str(self.checkpoint),
            "topic": self.topic,
            "bootstrap": self.kafka.bootstrap_servers,
            "batches": batches,
        } | given
        killed = {"STREAMS_KILL": kill, "STREAMS_KILLED": str(self.folder / f"killed {kill.replace('/', ' ')}")}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.streams.query", json.dumps(spec)],
            cwd=REPOSITORY,
            env=os.environ | spark_environment() | self.environ | (killed if kill else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def values(self) -> list[str]:
        """What an independent read_committed reader sees."""
        return committed_values(self.kafka.bootstrap_servers, self.topic, PARTITIONS)

    def session(self) -> Any:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": self.kafka.bootstrap_servers})
        return connect(settings, self.ledger_url, NAMESPACE)

    def check_exactly(self, at_least: int) -> int:
        """Each row of whole batches is there once, and nothing is open; how many batches there are."""
        with self.session() as session:
            wait_until(lambda: open_ids(session) == [], "the end of what was open")
        values = self.values()
        count, rest = divmod(len(values), ROWS)
        assert rest == 0
        assert values == sorted(f"v{n}" for n in range(count * ROWS))
        assert count >= at_least
        return count


def open_ids(session: Session) -> list[str]:
    return session.coordinator.list_open(session.id_prefix)


@pytest.fixture
def place(kafka: LocalKafka, topic: Callable[..., str], tmp_path: Path) -> Iterator[Place]:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    yield Place(kafka, topic(PARTITIONS), url, tmp_path)
