"""A place on this machine: a broker of the sandbox, and a ledger in SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.jars import DEFAULT_KAFKA
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.testing.assignment import Place


@contextmanager
def local_place(folder: Path, *, kafka_version: str = DEFAULT_KAFKA, **changes: Any) -> Iterator[Place]:
    """Where all clauses can be tried, one after the other; needs Java and Maven.

    :param folder: of the ledger, the manifests and the gates.
    :param kafka_version: as for ``airflow-kafka-eos broker``.
    :param changes: other fields of :class:`~.assignment.Place`.
    :raises SandboxError: the broker does not start.
    """
    url = f"sqlite:///{folder}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with LocalKafka(version=kafka_version) as kafka:
        yield Place({"bootstrap.servers": kafka.bootstrap_servers}, url, folder, **changes)
