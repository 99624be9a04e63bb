"""Fences in Kafka, of writers that nobody can reach: who makes an attempt undecidable moves its fence.

A Spark Connect client that is killed leaves its operation at the server, which goes on for minutes; its tasks see no
ledger and no folder of manifests, but Kafka. So the client initialises an id of the attempt's that nothing is ever
written with, its probe (:mod:`airflow_kafka_eos.connect.fence`); its tasks know the producer id and epoch that were
answered, and begin a transaction only where these still stand.

Which attempts have one the ledger notes when they are submitted: nobody else's id is asked about, or initialised.

The order makes that whole: the client initialises the fence, and then asks the ledger whether its attempt is over;
the other makes the attempt undecidable in the ledger, and then looks for the fence. One of them sees the other's. And
the fence is moved before what is open is listed: what a task begins behind that, it begins without having looked again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import IdRole

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
    from airflow_kafka_eos.ledger.ledger import Ledger

log = logging.getLogger(__name__)

#: Any, for there never is a transaction; as short as that, no broker's transaction.max.timeout.ms refuses it.
TIMEOUT_MS = 1000


def of_attempts(ledger_id: str, rows: Iterable[AttemptRow]) -> list[AttemptRef]:
    """Attempts with a fence that are over, and are not closed. No I/O.

    What is closed has its fence moved before that, and no client puts one up behind it.
    """
    return [
        AttemptRef(row.load, ledger_id, row.number)
        for row in rows
        if row.has_fence and row.verdict is Verdict.ABORT and row.closed_at is None
    ]


def move(coordinator: Coordinator, refs: Iterable[AttemptRef], asked: set[str]) -> set[str]:
    """Move the fences that stand. The ledger has given their attempts up before (rule: decide-before-kafka).

    :param asked: ids that were asked about before, which is enough: no fence that is put up since is believed. Those
        of this time are added.
    :returns: the ids of those that were moved.
    :raises KafkaEosError: a broker does not answer, or refuses.
    """
    wanted = {str(ref.common_id(IdRole.PROBE)) for ref in refs} - asked
    if not wanted:
        return set()
    found = set(coordinator.describe(wanted))
    for name in sorted(found):
        log.debug("%s stands at %s now", name, coordinator.init_producer_id(name, TIMEOUT_MS))
    asked |= wanted
    return found


def why_over(ledger: Ledger, ref: AttemptRef) -> str | None:
    """Why nothing of an attempt can be decided any more, or nobody would move its fence; None where neither is so."""
    found = ledger.attempt(ref.load, ref.attempt)
    if found is None:
        return "the ledger does not know it"
    if not found.is_undecided:
        return f"decided by {found.decided_by} at {found.decided_at}: {found.reason}"
    return None if found.has_fence else "the ledger does not know that it has a fence"
