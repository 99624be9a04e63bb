"""A fence in Kafka, for writers that nobody can reach: whoever supersedes their attempt moves it (Spark Connect).

A client that is killed leaves its operation at the server, which goes on for minutes, and executors see no folder of
manifests with its notes (:mod:`.orphan`). What they do see is Kafka. So the client initialises an id of the attempt's
that nothing is ever written with, its probe; its tasks know the producer id and epoch that were answered, and look
whether they are there still before they begin a transaction. Whoever ends the attempt initialises it once more.

The order makes that whole: the client notes the fence, initialises it, and then looks for the note that its attempt is
over; the other leaves that note, and then looks for the fence. One of them sees the other's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_kafka_eos.naming import AttemptRef, IdRole

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.spark.manifest_store import ManifestStore
    from airflow_kafka_eos.transaction import PreparedTxnState

_log = logging.getLogger(__name__)

#: Any: there never is a transaction.
TIMEOUT_MS = 60_000


def stand(store: ManifestStore, settings: KafkaSettings, ref: AttemptRef, deadline_ms: int) -> PreparedTxnState:
    """Set up an attempt's fence.

    :param deadline_ms: milliseconds since the epoch; past it nothing is initialised.
    :returns: where it stands, until somebody moves it.
    :raises SupersededError: the attempt is over already.
    :raises KafkaEosError: see :func:`~airflow_kafka_eos.kafka.producer.writers.initialise`.
    """
    from airflow_kafka_eos.kafka.producer.writers import initialise
    from airflow_kafka_eos.spark.orphan import superseded

    store.note_fence(ref)
    found = initialise(
        settings, ref.common_id(IdRole.PROBE), TIMEOUT_MS, two_phase_commit=False, deadline_ms=deadline_ms
    )
    if (by := store.superseded_by(ref)) is not None:
        raise superseded(ref, by)
    return found


def move(store: ManifestStore, coordinator: Coordinator, refs: Iterable[AttemptRef]) -> bool:
    """Move the fences of attempts that are over, those that have one.

    The ledger has made them undecidable before, and the note of it is left (rule: decide-before-kafka).

    :returns: whether any had one: what was begun before it moved is still to be swept.
    :raises KafkaEosError: a broker or the store does not answer.
    """
    moved = False
    for ref in refs:
        if store.has_fence(ref):
            moved = True
            now = coordinator.init_producer_id(str(ref.common_id(IdRole.PROBE)), TIMEOUT_MS)
            _log.debug("%s: its fence stands at %s now", ref, now)
    return moved
