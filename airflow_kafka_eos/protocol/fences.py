"""Fences in Kafka, of writers that nobody can reach: how they are put up, looked at, and moved.

A Spark Connect client that is killed leaves its operation at the server, which goes on for minutes; its tasks see no
ledger and no folder of manifests, but Kafka. So the client initialises an id of the attempt's that nothing is ever
written with, its probe (:func:`stand`); its tasks know the producer id and epoch that were answered, and begin a
transaction only where these still stand (:func:`why_moved`). Who sweeps an attempt that is decided, either way, moves
its fence (:func:`move`): also that of a committed one, for the application that has reported it lives on.

Which attempts have one the ledger notes when they are submitted: nobody else's id is asked about, or initialised.

The order makes that whole: the client initialises the fence, and then asks the ledger whether its attempt is over;
the other makes the attempt undecidable in the ledger, and then looks for the fence. One of them sees the other's. And
the fence is moved before what is open is listed, and what is listed counts only once :data:`QUIET_S` have passed behind
it: a look is good for :data:`LOOK_S`, and what was begun with it takes its time to arrive.

Executors import this: nothing here needs a ledger's database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import IdRole

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
    from airflow_kafka_eos.kafka.client.settings import KafkaSettings
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.transaction import PreparedTxnState

log = logging.getLogger(__name__)

#: Any, for there never is a transaction; as short as that, no broker's transaction.max.timeout.ms refuses it.
TIMEOUT_MS = 1000
#: Seconds that a cleanup waits at least behind a fence, whatever its quiet period is: only so it means anything.
QUIET_S = 10.0
#: Seconds behind a look at a fence in which something may be begun; the other half is for what is under way.
LOOK_S = QUIET_S / 2


def stand(
    settings: KafkaSettings, ref: AttemptRef, deadline_ms: int, why_over: Callable[[], str | None]
) -> PreparedTxnState | str:
    """Put an attempt's fence up, and ask behind it whether the attempt is over already.

    :param deadline_ms: milliseconds since the epoch; past it nothing is initialised.
    :param why_over: asks the ledger (:func:`why_over`).
    :returns: where it stands, until somebody moves it; or why nothing may be begun all the same.
    :raises ConfigurationError: the attempt has a slot, whose ids are another attempt's, too.
    :raises KafkaEosError: see :func:`~airflow_kafka_eos.kafka.producer.writers.initialise`.
    """
    from airflow_kafka_eos.kafka.producer.writers import initialise

    if ref.slot is not None:
        raise ConfigurationError(
            "an attempt with pooled transactional ids has no fence of its own: its slot's would stop the writers of "
            "whoever has leased that since",
            remedy="Leave transaction_naming out",
            **ref.ids,
        )
    fence = ref.common_id(IdRole.PROBE)
    stood = initialise(settings, fence, TIMEOUT_MS, two_phase_commit=False, deadline_ms=deadline_ms)
    return why_over() or stood


def why_over(found: AttemptRow | None) -> str | None:
    """Why nothing of an attempt can be decided any more, or nobody would move its fence; None where neither is so.

    :param found: what the ledger has of it, asked once its fence stands.
    """
    if found is None:
        return "the ledger does not know it"
    if not found.is_undecided:
        return f"decided by {found.decided_by} at {found.decided_at}: {found.reason}"
    return None if found.has_fence else "the ledger does not know that it has a fence"


def why_moved(coordinator: Coordinator, ref: AttemptRef, stood: PreparedTxnState) -> str | None:
    """Why nothing more may be begun; None where the fence stands as its client has put it up.

    :raises KafkaEosError: a broker does not answer, or refuses.
    """
    fence = str(ref.common_id(IdRole.PROBE))
    seen = coordinator.describe([fence]).get(fence)
    if seen is None:
        return (
            f"its fence {fence} is not known to the brokers. They forget an id that rests for "
            "transactional.id.expiration.ms (7 days): prepare must be done before that"
        )
    return None if seen.state == stood else f"its fence {fence} stands at {seen.state}, not at {stood}"


def may_have_writers(row: AttemptRow) -> bool:
    """Whether a writer may be left that nothing reaches but a fence. No I/O.

    Behind a manifest, too: a server lives on with all that it has not told of, unless each task is known to have run
    once. What was swept behind its fence has none.
    """
    is_swept = row.verdict is Verdict.ABORT and row.closed_at is not None
    return bool(row.has_fence) and row.writers_left is not False and not is_swept


def of_attempts(ledger_id: str, rows: Iterable[AttemptRow]) -> list[AttemptRef]:
    """Attempts that are decided, either way, and whose fence may still be looked at. No I/O."""
    return [
        AttemptRef(row.load, ledger_id, row.number)
        for row in rows
        if row.verdict is not None and may_have_writers(row)
    ]


def move(coordinator: Coordinator, refs: Iterable[AttemptRef], asked: set[str]) -> set[str]:
    """Move the fences that stand. The ledger has decided their attempts before (rule: decide-before-kafka).

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
