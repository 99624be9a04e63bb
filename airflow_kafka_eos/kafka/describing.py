"""Short visits to the transaction coordinator, each with a connection of its own, for writers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.kafka.deadline import left_ms
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import AnyId
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TransactionDescription

_log = logging.getLogger(__name__)


def describe_once(
    settings: KafkaSettings, transactional_id: AnyId
) -> TransactionDescription | None:
    """How the coordinator shows an id; None when it knows no such id."""
    with Wire(settings) as wire:
        coordinator = Coordinator(
            wire, namespace=transactional_id.namespace, ledger_id=transactional_id.ledger_id
        )
        return coordinator.describe([str(transactional_id)]).get(str(transactional_id))


def initialise(
    settings: KafkaSettings,
    transactional_id: AnyId,
    timeout_ms: int,
    *,
    two_phase_commit: bool,
    deadline_ms: int,
) -> PreparedTxnState:
    """What InitProducerId answers: the identity of the transaction that will be written with it.

    Rule: recorded-identity.

    :param deadline_ms: milliseconds since the epoch; past it nothing is initialised (rule: writers-have-a-deadline).
    :raises UndecidableError: the deadline has passed.
    :raises KafkaEosError: see :meth:`~airflow_kafka_eos.kafka.coordinator.Coordinator.init_producer_id`.
    """
    with Wire(settings) as wire:
        coordinator = Coordinator(
            wire, namespace=transactional_id.namespace, ledger_id=transactional_id.ledger_id
        )
        return coordinator.init_producer_id(
            str(transactional_id),
            timeout_ms,
            enable_2pc=two_phase_commit,
            before_sending=lambda: left_ms(deadline_ms, int(time.time() * 1000), str(transactional_id)),
        )


def abort_reported(settings: KafkaSettings, ref: AttemptRef, reported: Iterable[PreparedTransaction]) -> None:
    """Abort transactions by their recorded identity (rule: recorded-identity); one that fails keeps no other open.

    Only for an attempt that has first been made undecidable (rule: decide-before-kafka).
    """
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        try:
            coordinator.end_many(reported, Verdict.ABORT)
        except KafkaEosError as e:
            _log.warning("%s: what could not be aborted is left to cleanup: %s", ref, e)
