"""What the driver asks the cluster before a task runs: is it there, do its topics exist, may we hold so long?"""

from __future__ import annotations

import logging
import time

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.admin import preflight
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.admin.preflight import (
    RETENTION,
    check_broker,
    check_every_broker,
    check_hold_time,
    check_topics,
    oldest_kept_ms,
)
from airflow_kafka_eos.kafka.client.librdkafka import OnlyLibrdkafkaError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.interface import TopicLimits
from airflow_kafka_eos.kafka.producer.options import (
    ProducerOptions,
    check_setting_names,
    check_setting_values,
)
from airflow_kafka_eos.load import TransactionScope, TwoPhaseCommit, WriterName
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.spark.options import Checked, WriteOptions
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS

_log = logging.getLogger(__name__)

_LIMIT = "max.message.bytes"
#: Kafka's own default of ``max.message.bytes``, where the login may not read topic settings.
_DEFAULT_LIMIT = 1_048_588


def check_cluster(settings: KafkaSettings, options: WriteOptions, *, timeout_s: float = 30) -> Checked:
    """Check the cluster.

    :param timeout_s: seconds for one question, its repetitions included.
    :raises TopicError: a topic does not exist.
    :raises ConfigurationError: the hold time is above the broker's ``transaction.max.timeout.ms``; settings of the
        writer are unknown or wrong, or contradict each other; or they need the confluent writer where the broker
        grants two-phase commit, and nobody has asked to do without.
    :raises BrokerTooOldError: a broker lacks a request that a step of the load needs.
    :raises KafkaEosError: the broker is not reachable, or refuses the login; or two-phase commit is required and not
        granted.
    """
    check_setting_names(settings)
    check_setting_values(settings)
    writer, why = choose_writer(settings, options)
    with Wire(settings, timeout_s=timeout_s) as wire:
        check_every_broker(wire)
        partitions = Partitions(wire)
        topics = check_topics(partitions, options.topics)
        two_phase_commit = _is_granted(wire, partitions, options, writer, why)
        if not two_phase_commit:
            check_hold_time(partitions, options.transaction_timeout_ms)
        # empty where the login may not read it: the broker still refuses what is too large, only later
        config = partitions.topic_config(options.topics, [_LIMIT, *RETENTION])
    visible_at_ms = int(time.time() * 1000) + options.transaction_timeout_ms
    limits = {
        name: TopicLimits(
            info.partitions,
            int(config.get(name, {}).get(_LIMIT) or _DEFAULT_LIMIT),
            info.topic_id,
            oldest_kept_ms(config.get(name, {}), visible_at_ms),
        )
        for name, info in topics.items()
    }
    if writer is WriterName.CONFLUENT:
        from airflow_kafka_eos.kafka.producer.confluent import check_configuration

        check_configuration(settings, options.target(options.attempt.common_id(IdRole.PROBE), limits))
    return Checked(
        topics=dict(topics),
        limits=limits,
        writer=writer,
        two_phase_commit=two_phase_commit,
        timeout_ms=TWO_PHASE_TIMEOUT_MS if two_phase_commit else options.transaction_timeout_ms,
    )


def partitions_of(settings: KafkaSettings, options: WriteOptions, *, timeout_s: float = 30) -> dict[str, int]:
    """Partitions of each of the load's topics. Parameters and errors as :func:`check_cluster`."""
    with Wire(settings, timeout_s=timeout_s) as wire:
        check_broker(wire)
        topics = check_topics(Partitions(wire), options.topics)
    return {name: info.partitions for name, info in topics.items()}


def choose_writer(
    settings: KafkaSettings, options: WriteOptions
) -> tuple[WriterName, OnlyLibrdkafkaError | None]:
    """``arrow``, unless it was not asked for, or the settings name what only librdkafka has. No I/O.

    :returns: the writer, and where nobody has asked for it by name, why it is the confluent one.
    :raises ConfigurationError: the writer that was asked for cannot do what was asked for, or no writer has a setting.
    """
    needs_arrow = ""
    if options.scope is TransactionScope.LOAD:
        needs_arrow = "transaction.scope=load"
    elif options.two_phase_commit is TwoPhaseCommit.REQUIRED:
        needs_arrow = "transaction.two.phase.commit=required"
    if options.writer is WriterName.CONFLUENT and needs_arrow:
        raise ConfigurationError(
            f"writer=confluent cannot do {needs_arrow}: librdkafka has neither two-phase commit nor a way to write "
            "into a transaction that another process has begun",
            remedy=f"Use writer=arrow, or leave {needs_arrow.partition('=')[0]} at its default",
        )
    try:
        wanted = ProducerOptions.from_settings(settings)
        if wanted.compression != "none":
            # pyarrow comes with it: 0.15 s in a process that needs it for nothing else
            from airflow_kafka_eos.kafka.records.compression import compressor

            compressor(wanted.compression, wanted.compression_level)
    except OnlyLibrdkafkaError as e:
        if options.writer is WriterName.ARROW or needs_arrow:
            raise
        if options.writer is WriterName.AUTO:
            return WriterName.CONFLUENT, e
    return (WriterName.CONFLUENT if options.writer is WriterName.CONFLUENT else WriterName.ARROW), None


def _never_dropped(options: WriteOptions, why: OnlyLibrdkafkaError) -> ConfigurationError:
    """Two-phase commit is there to be had, and a setting would have it go without anybody's word."""
    ref = options.attempt
    return ConfigurationError(
        "the broker grants two-phase commit, and the confluent writer, which has none, would be taken, because "
        f"{why.message}",
        remedy="Change that setting; or say that the load goes without two-phase commit, by two_phase_commit='off', or "
        "by writer='confluent': then the broker aborts what is not decided within hold_time",
        **ref.ids,
    )


def _is_granted(
    wire: Wire,
    partitions: Partitions,
    options: WriteOptions,
    writer: WriterName,
    fallen_back: OnlyLibrdkafkaError | None,
) -> bool:
    """Whether the attempt's transactions are initialised with Enable2Pc.

    :param fallen_back: why the writer is the confluent one, where nobody has asked for it.
    """
    ref = options.attempt
    if fallen_back is not None:
        _log.warning("%s: writing with confluent-kafka, for %s", ref, fallen_back)
    if options.two_phase_commit is TwoPhaseCommit.OFF:
        return False
    if writer is WriterName.CONFLUENT and fallen_back is None:
        why = "writer=confluent has none"
    else:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        probe = ref.common_id(IdRole.PROBE)
        refused = preflight.refusal(coordinator, partitions, probe)
        if refused is None and fallen_back is not None:
            raise _never_dropped(options, fallen_back)
        if refused is None:
            return True
        if options.two_phase_commit is TwoPhaseCommit.REQUIRED:
            raise refused
        why = str(refused)
    _log.warning(
        "%s: no two-phase commit, so the brokers abort what is not decided %g s after its first record: %s",
        ref,
        options.transaction_timeout_ms / 1000,
        why,
    )
    return False
