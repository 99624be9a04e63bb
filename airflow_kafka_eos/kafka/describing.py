"""Two short visits to the transaction coordinator, each with a connection of its own, for writers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.transaction import PreparedTransaction, TransactionDescription

_log = logging.getLogger(__name__)


def describe_once(
    settings: KafkaSettings, transactional_id: TransactionalId
) -> TransactionDescription | None:
    """How the coordinator shows an id; None when it knows no such id."""
    with Wire(settings) as wire:
        coordinator = Coordinator(
            wire, namespace=transactional_id.load.namespace, ledger_id=transactional_id.ledger_id
        )
        return coordinator.describe([str(transactional_id)]).get(str(transactional_id))


def abort_reported(settings: KafkaSettings, ref: AttemptRef, reported: Iterable[PreparedTransaction]) -> None:
    """Abort transactions by their recorded identity (rule 4), each on its own: one that fails keeps no other open.

    Only for an attempt that has first been made undecidable (rule 1).
    """
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        for transaction in reported:
            try:
                coordinator.end(transaction, Verdict.ABORT)
            except KafkaEosError as e:
                _log.warning("%s is left to cleanup: %s", transaction, e)
