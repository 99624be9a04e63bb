"""Does this cluster grant two-phase commit (KIP-939)? Asked, not guessed: only InitProducerId itself can tell.

It takes an InitProducerId v6 on the brokers (Kafka 4.1, with ``unstable.api.versions.enable``), the setting
``transaction.two.phase.commit.enable``, and the ACL TWO_PHASE_COMMIT beside WRITE. Brokers answer for the last two with
one and the same error code, so what is missing is found out by asking again without Enable2Pc.
"""

from __future__ import annotations

from kafka.protocol.producer.transaction import InitProducerIdRequest

from airflow_kafka_eos.errors import AccessError, BrokerTooOldError, ConfigurationError, KafkaEosError
from airflow_kafka_eos.kafka.coordinator import TWO_PHASE_VERSION, Coordinator, too_old
from airflow_kafka_eos.kafka.partitions import Partitions
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.naming import AnyId, IdRole

ENABLE = "transaction.two.phase.commit.enable"
#: of the probing id when it is asked about without Enable2Pc; it never has a transaction that could last so long
_PROBE_TIMEOUT_MS = 1000


def foreseen_refusal(wire: Wire, partitions: Partitions) -> KafkaEosError | None:
    """Why two-phase commit cannot be granted, as far as it shows without initialising an id; None where it may be."""
    if (wire.api_version(InitProducerIdRequest) or 0) < TWO_PHASE_VERSION:
        return too_old(wire.settings.bootstrap_servers)
    disabled = _switched_off(partitions)
    return _disabled(disabled) if disabled else None


def refusal(coordinator: Coordinator, partitions: Partitions, probe: AnyId) -> KafkaEosError | None:
    """Why two-phase commit is not granted, as an error that says what to set; None when it is granted.

    :raises AccessError: the ids may not be written with at all, in one phase or two.
    :param probe: an id of the attempt with role ``probe``: it is initialised, and nothing is ever written with it.
    :raises BrokerUnavailableError: no answer.
    """
    assert probe.role is IdRole.PROBE  # initialising any other would end what is open under it
    disabled = _switched_off(partitions)
    if disabled:  # on any of them: each of the attempt's ids may have its coordinator there
        return _disabled(disabled)
    try:
        coordinator.init_producer_id(str(probe), _PROBE_TIMEOUT_MS, enable_2pc=True)
    except BrokerTooOldError as e:
        return e
    except AccessError as refused:
        return _what_is_missing(coordinator, probe, refused)
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


def _what_is_missing(
    coordinator: Coordinator, probe: AnyId, refused: AccessError
) -> KafkaEosError:
    coordinator.init_producer_id(str(probe), _PROBE_TIMEOUT_MS)
    return AccessError(
        f"two-phase commit is refused, although {probe} may be written with: the ACL TWO_PHASE_COMMIT is missing, or "
        f"{ENABLE} is not true on the broker",
        remedy="Grant the principal of the Kafka connection TWO_PHASE_COMMIT on TransactionalIds prefixed "
        f"{str(probe).partition('.')[0]}. (beside WRITE), and set {ENABLE}=true on every broker",
        transactional_id=str(probe),
    )
