"""An attempt's fence in Kafka, put up by its client (:mod:`airflow_kafka_eos.protocol.fences`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_kafka_eos.naming import AttemptRef, IdRole
from airflow_kafka_eos.protocol.fences import TIMEOUT_MS

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.transaction import PreparedTxnState


def stand(
    settings: KafkaSettings, ref: AttemptRef, deadline_ms: int, why_over: Callable[[], str | None]
) -> PreparedTxnState:
    """Put it up, and look behind it whether the attempt is over already.

    :param ref: with ids of its own: a slot's would be another attempt's, too.
    :param deadline_ms: milliseconds since the epoch; past it nothing is initialised.
    :param why_over: asks the ledger.
    :returns: where it stands, until somebody moves it.
    :raises SupersededError: the attempt is over already.
    :raises KafkaEosError: see :func:`~airflow_kafka_eos.kafka.producer.writers.initialise`.
    """
    from airflow_kafka_eos.kafka.producer.writers import initialise
    from airflow_kafka_eos.spark.orphan import superseded

    assert ref.slot is None
    fence = ref.common_id(IdRole.PROBE)
    found = initialise(settings, fence, TIMEOUT_MS, two_phase_commit=False, deadline_ms=deadline_ms)
    if (by := why_over()) is not None:
        raise superseded(ref, by)
    return found
