"""Which writer writes: chosen by name, made here and nowhere else.

And short visits to the transaction coordinator, each with a connection of its own, for writers and their driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import PipelinedWire, Wire
from airflow_kafka_eos.kafka.producer.interface import TransactionWriter, WriteTarget, left_ms
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef, TopicInfo
from airflow_kafka_eos.naming import AnyId
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TransactionDescription

_log = logging.getLogger(__name__)


def wire_before(name: str, settings: KafkaSettings, *, keeps_wire: bool = False) -> Wire:
    """A connection for questions before a writer is made; :func:`make_writer` takes it over.

    :param keeps_wire: as there.
    """
    if name == "arrow":
        from airflow_kafka_eos.kafka.producer.arrow.sent_transaction import wire_to

        return wire_to(settings, ProducerOptions.from_settings(settings), keeps_wire=keeps_wire)
    return Wire(settings)


def make_writer(
    name: str,
    settings: KafkaSettings,
    target: WriteTarget,
    wire: Wire | None = None,
    *,
    keeps_wire: bool = False,
) -> TransactionWriter:
    """A writer that has not been opened.

    :param name: ``arrow`` or ``confluent``.
    :param wire: of :func:`wire_before`. The writer goes on with it: one login less. Librdkafka cannot, so it is closed.
    :param keeps_wire: what ends well leaves its connection to the next writer of this process; librdkafka cannot.
    :raises ConfigurationError: the confluent writer cannot do what the target asks for.
    """
    if name == "arrow":
        from airflow_kafka_eos.kafka.producer.arrow.writer import ArrowWriter

        assert wire is None or isinstance(wire, PipelinedWire)
        return ArrowWriter(settings, target, wire=wire, keeps_wire=keeps_wire)
    if wire is not None:
        wire.close()
    if target.shared is not None or target.two_phase_commit or target.look is not None:
        # it sends InitProducerId, AddPartitionsToTxn and Produce by itself, and again, for as long as it likes
        raise ConfigurationError(
            "librdkafka can neither write into a transaction that others began nor ask for two-phase commit, nor does "
            "it let anybody look before it begins one",
            remedy="Use writer=arrow",
            transactional_id=str(target.transactional_id),
        )
    from airflow_kafka_eos.kafka.producer.confluent import ConfluentWriter

    def topics_now() -> Mapping[str, TopicInfo]:
        with Wire(settings) as wire:
            return Partitions(wire).topic_info(target.topics)

    return ConfluentWriter(
        settings, target, lambda _: describe_once(settings, target.transactional_id), topics_now
    )


def describe_once(settings: KafkaSettings, transactional_id: AnyId) -> TransactionDescription | None:
    """:func:`describe` by a connection of its own."""
    with Wire(settings) as wire:
        return describe(wire, transactional_id)


def describe(wire: Wire, transactional_id: AnyId) -> TransactionDescription | None:
    """How the coordinator shows an id; None when it knows no such id."""
    coordinator = Coordinator(wire, namespace=transactional_id.namespace, ledger_id=transactional_id.ledger_id)
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
    :raises KafkaEosError: see :meth:`~airflow_kafka_eos.kafka.admin.coordinator.Coordinator.init_producer_id`.
    """
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=transactional_id.namespace, ledger_id=transactional_id.ledger_id)
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
