"""Other applications on a broker with ACLs: what is alive and dates its records itself, and what hangs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer, open_producers
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.protocol import hanging
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TopicPartition
from tests.acls import Right, allow_exactly
from tests.kafka.least_support import LEAST, NAMESPACE, PRINCIPAL
from tests.protocol.late import produce_late
from tests.secured import Secured, secured_broker

#: What proves that nothing is hidden, beside the least set.
SEES_ALL = {
    Right("DESCRIBE", "TransactionalId", "*"),
    Right("DESCRIBE", "Topic", "__transaction_state"),
    Right("DESCRIBE", "Cluster", "kafka-cluster"),
    Right("DESCRIBE_CONFIGS", "Cluster", "kafka-cluster"),
}
#: Brokers that take what no coordinator knows of, as all did before KIP-890, and keep records of 2020.
LAX = {"transaction.partition.verification.enable": "false", "log.retention.check.interval.ms": "1000000000"}
LONG_AGO_MS = 1_577_836_800_000
_numbers = itertools.count(1)


@dataclass(frozen=True)
class SharedTopic:
    """A topic that loader may use, on a broker that takes late records as all did before KIP-890."""

    broker: Secured
    topic: str

    @property
    def everybody(self) -> KafkaSettings:
        """Who may do all."""
        return KafkaSettings.from_mapping({"bootstrap.servers": self.broker.plain.bootstrap_servers})

    def partition(self, number: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, number)

    def begin(self, name: str, partition: int = 0) -> Producer:
        """An application's open transaction, with records of 2020."""
        producer = Producer(
            {
                "bootstrap.servers": self.broker.plain.bootstrap_servers,
                "transactional.id": name,
                "transaction.timeout.ms": 600_000,
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(self.topic, b"alive", partition=partition, timestamp=LONG_AGO_MS)
        assert producer.flush(60) == 0
        return producer

    def hang(self, name: str, partition: int = 0) -> PreparedTransaction:
        """An application that is alive, and has a record behind the end of its transaction."""
        producer = self.begin(name, partition)
        (open_,) = self.open(partition)
        producer.commit_transaction(60)
        give_up = time.monotonic() + 60
        while self.open(partition):  # the client is answered before the marker is written; it would end the late one
            assert time.monotonic() < give_up, "no commit marker comes"
            time.sleep(0.02)
        transaction = PreparedTransaction(name, open_.state)
        assert produce_late(self.everybody, transaction, self.partition(partition), "late", 1) == 0
        return transaction

    def hang_unknown(self, partition: int = 0) -> PreparedTransaction:
        """No coordinator has ever heard of this producer id."""
        transaction = PreparedTransaction("forgotten", PreparedTxnState(4_000_000 + next(_numbers), 0))
        assert produce_late(self.everybody, transaction, self.partition(partition), "lost", 0) == 0
        return transaction

    def open(self, partition: int = 0) -> list[OpenProducer]:
        with Wire(self.everybody, timeout_s=30) as wire:
            return open_producers(wire, [self.partition(partition)])

    def allow(self, *rights: Right) -> None:
        """The least set, and these."""
        allow_exactly(self.broker.plain, PRINCIPAL, LEAST | set(rights))


@pytest.fixture(scope="module", params=("4.4.0", "3.9.2"))
def lax(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("lax"), request.param, LAX) as running:
        yield running


@pytest.fixture
def shared(lax: Secured, monkeypatch: pytest.MonkeyPatch) -> SharedTopic:
    monkeypatch.setattr(hanging, "_APART_S", 0.2)
    topic = f"least-hanging-{next(_numbers)}-{time.time_ns()}"
    lax.plain.create_topic(topic, partitions=2, config={"retention.ms": "-1"})
    return SharedTopic(lax, topic)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    lax: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs a command of ours with loader's login."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    file = tmp_path / "client.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in lax.loader_extra().items()))

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "--namespace", NAMESPACE, "--command-config", str(file)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
