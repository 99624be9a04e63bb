"""Checks before anything is written: does this cluster have, and grant, what exactly-once needs?

Whether it grants two-phase commit (KIP-939) is asked, not guessed: only InitProducerId itself can tell. It takes an
InitProducerId v6 on the brokers (Kafka 4.1, with ``unstable.api.versions.enable``), the setting
``transaction.two.phase.commit.enable``, and the ACL TWO_PHASE_COMMIT beside WRITE. Brokers answer for the last two with
one and the same error code, so what is missing is found out by asking again without Enable2Pc.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kafka.protocol.producer.transaction import InitProducerIdRequest

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerTooOldError,
    BrokerUnavailableError,
    ConfigurationError,
    KafkaEosError,
    TopicError,
)
from airflow_kafka_eos.kafka.admin import capabilities
from airflow_kafka_eos.kafka.admin.coordinator import TWO_PHASE_VERSION, Coordinator, too_old
from airflow_kafka_eos.kafka.admin.inspect import versions_of
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.manifest import TopicInfo
from airflow_kafka_eos.naming import AnyId, IdRole

log = logging.getLogger(__name__)

MAX_TIMEOUT = "transaction.max.timeout.ms"
ENABLE = "transaction.two.phase.commit.enable"
#: of the probing id when it is asked about without Enable2Pc; it never has a transaction that could last so long
_PROBING_TIMEOUT_MS = 1000
#: The topic settings that :func:`oldest_kept_ms` reads.
RETENTION = ("retention.ms", "cleanup.policy", "message.timestamp.type")


def check_broker(wire: Wire) -> None:
    """Refuse a broker that lacks a request of the steps that end transactions; costs no request of its own.

    Of the broker that was connected to first. Before something is begun, ask :func:`check_every_broker`.

    :raises BrokerTooOldError: naming every request that it lacks.
    """
    asked = f"the broker that answered at {wire.settings.bootstrap_servers}"
    refused = capabilities.refusal({asked: wire.api_versions()}, capabilities.ENDING)
    if refused is not None:
        raise refused


def check_every_broker(wire: Wire) -> None:
    """Refuse a cluster if any of its brokers lacks a request of any step. One request to each, which changes nothing.

    Each may coordinate a transaction, or lead a partition; while a cluster is upgraded they differ (rule:
    every-broker-offers-it). One that does not answer says nothing of what it lacks: it is left to the steps that ask
    it for something.

    :raises BrokerTooOldError: naming the brokers, and every request that each lacks.
    """
    offered = {}
    for node_id, address in sorted(wire.addresses().items()):
        try:
            offered[f"broker {node_id} ({address})"] = versions_of(wire, node_id).requests
        except BrokerUnavailableError as e:
            log.debug("what broker %d offers is not known: %s", node_id, e)
    refused = capabilities.refusal(offered)
    if refused is not None:
        raise refused


def check_hold_time(partitions: Partitions, timeout_ms: int) -> None:
    """Refuse a hold time that a broker would not grant; nothing is checked where DESCRIBE_CONFIGS is missing.

    :raises ConfigurationError: naming the asked time, the broker and its limit.
    """
    for node_id, found in sorted(partitions.broker_configs([MAX_TIMEOUT]).items()):
        limit = found.get(MAX_TIMEOUT)
        if limit is not None and timeout_ms > int(limit):
            raise ConfigurationError(
                f"the load asks for a transaction timeout of {timeout_ms} ms, broker {node_id} grants "
                f"{MAX_TIMEOUT}={limit} at most",
                remedy=f"Set {MAX_TIMEOUT}={timeout_ms} or more on every broker, or ask for a shorter hold time",
            )


def check_topics(partitions: Partitions, names: Sequence[str]) -> dict[str, TopicInfo]:
    """Topic ids and partition counts of the load's topics.

    :raises TopicError: a topic is missing, or internal to Kafka.
    :raises AccessError: DESCRIBE on a topic is missing.
    """
    internal = [name for name in names if name.startswith("__")]
    if internal:
        raise TopicError(
            f"topic {', '.join(internal)} is one of Kafka's own", remedy="Write to a topic of your application"
        )
    return partitions.topic_info(names)


def fits_retention(config: Mapping[str, str], oldest_timestamp_ms: int, visible_at_ms: int) -> bool:
    """False when the oldest record may be deleted before it becomes visible: retention goes by record time.

    :param config: see :func:`oldest_kept_ms`.
    """
    return oldest_timestamp_ms >= oldest_kept_ms(config, visible_at_ms)


def oldest_kept_ms(config: Mapping[str, str], visible_at_ms: int) -> int:
    """The earliest record timestamp that a topic still keeps at a moment; 0 when it keeps all.

    :param config: the topic's ``retention.ms``, ``cleanup.policy`` and ``message.timestamp.type``; what is missing
        counts as no limit.
    :param visible_at_ms: the moment, milliseconds since the epoch.
    """
    if "delete" not in config.get("cleanup.policy", "delete").split(","):
        return 0
    retention = int(config.get("retention.ms", "-1"))
    if retention < 0 or config.get("message.timestamp.type") == "LogAppendTime":
        return 0
    return max(0, visible_at_ms - retention + 1)


def foreseen_refusal(wire: Wire, partitions: Partitions) -> KafkaEosError | None:
    """Why two-phase commit cannot be granted, as far as it shows without initialising an id; None where it may be."""
    if (wire.api_version(InitProducerIdRequest) or 0) < TWO_PHASE_VERSION:
        return too_old(wire.settings.bootstrap_servers)
    disabled = _switched_off(partitions)
    return _disabled(disabled) if disabled else None


def refusal(coordinator: Coordinator, partitions: Partitions, probing_id: AnyId) -> KafkaEosError | None:
    """Why two-phase commit is not granted, as an error that says what to set; None when it is granted.

    :raises AccessError: the ids may not be written with at all, in one phase or two.
    :param probing_id: an id of the attempt with role ``probe``: it is initialised, and nothing is ever written with it.
    :raises BrokerUnavailableError: no answer.
    """
    assert probing_id.role is IdRole.PROBE  # initialising any other would end what is open under it
    disabled = _switched_off(partitions)
    if disabled:  # on any of them: each of the attempt's ids may have its coordinator there
        return _disabled(disabled)
    try:
        coordinator.init_producer_id(str(probing_id), _PROBING_TIMEOUT_MS, enable_2pc=True)
    except BrokerTooOldError as e:
        return e
    except AccessError:
        return _what_is_missing(coordinator, probing_id)
    return None


def _switched_off(partitions: Partitions) -> list[int]:
    settings = sorted(partitions.broker_configs([ENABLE]).items())
    return [node_id for node_id, found in settings if found.get(ENABLE) == "false"]


def _disabled(node_ids: list[int]) -> ConfigurationError:
    which = f"broker{'s' if len(node_ids) > 1 else ''} {', '.join(map(str, node_ids))}"
    return ConfigurationError(
        f"two-phase commit is switched off on {which} ({ENABLE}=false)",
        remedy=f"Set {ENABLE}=true on every broker (and unstable.api.versions.enable=true), and grant the principal "
        " WRITE and TWO_PHASE_COMMIT on its TransactionalIds",
    )


def _what_is_missing(coordinator: Coordinator, probing_id: AnyId) -> KafkaEosError:
    coordinator.init_producer_id(str(probing_id), _PROBING_TIMEOUT_MS)
    return AccessError(
        f"two-phase commit is refused, although {probing_id} may be written with: the ACL TWO_PHASE_COMMIT is missing, "
        f"or {ENABLE} is not true on the broker",
        remedy="Grant the principal of the Kafka connection TWO_PHASE_COMMIT on TransactionalIds prefixed "
        f"{str(probing_id).partition('.')[0]}. (beside WRITE), and set {ENABLE}=true on every broker",
        transactional_id=str(probing_id),
    )
