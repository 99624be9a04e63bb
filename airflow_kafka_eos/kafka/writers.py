"""Which writer writes: chosen by name, made here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.writer import TransactionWriter, WriteTarget
from airflow_kafka_eos.manifest import TopicInfo


def make_writer(name: str, settings: KafkaSettings, target: WriteTarget) -> TransactionWriter:
    """A writer that has not been opened.

    :param name: ``arrow`` or ``confluent``.
    :raises ConfigurationError: the confluent writer cannot do what the target asks for.
    """
    if name == "arrow":
        from airflow_kafka_eos.kafka.arrow.writer import ArrowWriter

        return ArrowWriter(settings, target)
    if target.shared is not None or target.two_phase_commit:
        raise ConfigurationError(
            "librdkafka can neither write into a transaction that others began nor ask for two-phase commit",
            remedy="Use writer=arrow",
            transactional_id=str(target.transactional_id),
        )
    from airflow_kafka_eos.kafka.confluent_writer import ConfluentWriter
    from airflow_kafka_eos.kafka.describing import describe_once
    from airflow_kafka_eos.kafka.partitions import Partitions
    from airflow_kafka_eos.kafka.wire import Wire

    def topics_now() -> Mapping[str, TopicInfo]:
        with Wire(settings) as wire:
            return Partitions(wire).topic_info(target.topics)

    return ConfluentWriter(
        settings, target, lambda _: describe_once(settings, target.transactional_id), topics_now
    )
