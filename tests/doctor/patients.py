"""Clusters and ledgers that are well, and others that are not: all of them real."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from airflow_kafka_eos.doctor.examine import Examination, examine
from airflow_kafka_eos.doctor.finding import Asked, Finding
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger import migrate
from airflow_kafka_eos.ledger.tables import VERSION_TABLE
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.secured import free_port
from tests.transaction_version import finalize

NAMESPACE = "clinic"
OTHER_LEDGER = "0badc0ffee"
HOUR_S = 3600.0

#: everything that one broker can suffer from at once
BAD_SETTINGS = {
    "transaction.max.timeout.ms": "60000",
    "transaction.two.phase.commit.enable": "false",
    "transactional.id.expiration.ms": "600000",
}
BAD_TOPIC = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "true",
    "retention.ms": "1000",
    "retention.bytes": "1000",
    "cleanup.policy": "compact,delete",
    "delete.retention.ms": "0",
    "max.message.bytes": "5000",
}
BAD_SPARK = {
    "spark.speculation": "true",
    "spark.task.maxFailures": "4",
    "spark.stage.maxConsecutiveAttempts": "4",
    "spark.stage.ignoreDecommissionFetchFailure": "true",
}


def settings_of(bootstrap_servers: str, **more: str) -> KafkaSettings:
    return KafkaSettings.from_mapping({"bootstrap.servers": bootstrap_servers, **more})


def asked(*topics: str, **changes: object) -> Asked:
    standard = {
        "scope": TransactionScope.LOAD,
        "spark_conf": {},
        "executor": "airflow.executors.local_executor.LocalExecutor",
    }
    return Asked(NAMESPACE, topics, 900_000, **{**standard, **changes})  # type: ignore[arg-type]


def an_hour_ahead() -> float:
    return time.time() + HOUR_S


def examined(
    settings: KafkaSettings | None,
    url: str,
    question: Asked,
    now: Callable[[], float] = time.time,
    timeout_s: float = 30,
) -> Examination:
    return examine(settings, url, question, timeout_s=timeout_s, now=now)


def of(found: Examination, id: str, subject: str = "") -> Finding:
    """The one finding of a check."""
    (one,) = (f for f in found.findings if f.id == id and subject in f.subject)
    return one


def new_ledger(folder: Path) -> str:
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate.upgrade(url)
    return url


def outdated_ledger(folder: Path) -> str:
    url = new_ledger(folder)
    connection = sqlite3.connect(folder / "ledger.db")
    with connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0001'")
    connection.close()
    return url


@contextmanager
def broken_broker(folder: Path, ledger_id: str) -> Iterator[tuple[LocalKafka, str]]:
    """Transaction version 1, bad settings, a bad topic, a transaction of another deployment; and the address of a
    listener that tells its clients to go where nobody is."""
    with LocalKafka(data_dir=folder, broker_settings=BAD_SETTINGS) as kafka:
        kafka.create_topic("sick", partitions=1, config=BAD_TOPIC)
        kafka.create_topic("fine", partitions=1)
        lost = _advertise_nobody(kafka)
        finalize(kafka.bootstrap_servers, 1)
        _use_ids(kafka, ledger_id, 4)
        stranger = _transaction_of_another_ledger(kafka)
        yield kafka, lost
        del stranger


def _advertise_nobody(kafka: LocalKafka) -> str:
    address = f"127.0.0.1:{free_port()}"
    added = {
        "listeners": f",LOST://{address}",
        "advertised.listeners": f",LOST://127.0.0.1:{free_port()}",
        "listener.security.protocol.map": ",LOST:PLAINTEXT",
    }
    properties = kafka.log_file().parent / "server.properties"
    lines = [line + added.get(line.partition("=")[0], "") for line in properties.read_text().splitlines()]
    properties.write_text("\n".join(lines) + "\n")
    kafka.restart()
    return address


def _use_ids(kafka: LocalKafka, ledger_id: str, count: int) -> None:
    load = LoadIdentity(NAMESPACE, "orders", "k")
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        coordinator = Coordinator(wire, namespace=NAMESPACE, ledger_id=ledger_id)
        for n in range(count):
            coordinator.init_producer_id(str(TransactionalId(load, ledger_id, 1, 0, n)), 60_000)


def _transaction_of_another_ledger(kafka: LocalKafka) -> Producer:
    name = TransactionalId(LoadIdentity(NAMESPACE, "orders", "k"), OTHER_LEDGER, 1, 0, 0)
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": str(name),
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("fine", b"v")
    producer.flush(30)
    return producer

