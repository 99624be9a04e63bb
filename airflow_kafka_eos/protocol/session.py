"""An open ledger and an open cluster: what every step of the protocol needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.admin.preflight import check_broker
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.naming import namespace_prefix


@dataclass(frozen=True)
class Session:
    """Handles of one process on the ledger and the cluster. Not shared between threads.

    :param reads_index: whether leaders' lists of aborted transactions may be believed, where they look trustworthy
        (:func:`~airflow_kafka_eos.kafka.records.transaction_index.may_be_believed`).
    """

    namespace: str
    ledger: Ledger
    coordinator: Coordinator
    partitions: Partitions
    reads_index: bool = True

    @property
    def cluster_id(self) -> str | None:
        """The id of the Kafka cluster that the connection leads to; None where its brokers tell none."""
        return self.partitions.wire.cluster_id()

    @property
    def id_prefix(self) -> str:
        """What every transactional id starts with that this ledger has handed out in the namespace."""
        return namespace_prefix(self.namespace, self.ledger.ledger_id)

    def broker_limits(self, setting: str) -> list[int]:
        """What each broker has set it to, of those that show it (DESCRIBE_CONFIGS on the Cluster)."""
        found = self.partitions.broker_configs([setting]).values()
        return [int(of[setting]) for of in found if of.get(setting)]


@contextmanager
def connect(
    settings: KafkaSettings,
    ledger_url: str,
    namespace: str,
    *,
    timeout_s: float = 60,
    open_ledger: Callable[[str], Ledger] = Ledger.open,
    reads_index: bool = True,
) -> Iterator[Session]:
    """Open ledger and cluster, and close both afterwards.

    :param timeout_s: seconds that one request, with its retries, may take.
    :param open_ledger: ``Ledger.open`` or ``Ledger.open_existing``.
    :param reads_index: see :class:`Session`.
    :raises LedgerUnavailableError: the ledger's database does not answer, or is not upgraded.
    :raises BrokerUnavailableError: no broker answers.
    :raises AccessError: the broker refuses the credentials.
    :raises BrokerTooOldError: the broker lacks a request that exactly-once needs.
    """
    with open_ledger(ledger_url) as ledger, Wire(settings, timeout_s=timeout_s) as wire:
        check_broker(wire)
        coordinator = Coordinator(wire, namespace=namespace, ledger_id=ledger.ledger_id)
        yield Session(namespace, ledger, coordinator, Partitions(wire), reads_index)
