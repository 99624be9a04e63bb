"""Whether coordinators have nothing more to do for a transactional id, so that a partition may be told past them.

Rule: forgotten-markers.

One answer is not enough for that: a broker that has lost a coordinator's partition and has not heard of it (paused, or
cut off from the controllers) answers from what it remembers, or knows no such id. Then the coordinator that is at work
could write the opposite marker. So no broker at all may list the id as open, and no coordinator may move meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_eos.naming import namespace_prefix
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, TransactionDescription


def over(session: Session, ids: Iterable[str]) -> dict[str, TransactionDescription | None]:
    """Those of our transactional ids that are over, each as its coordinator shows it; None: it knows no such id.

    Empty while a coordinator moves or is away: ask again.

    :raises AccessError: DESCRIBE on one of them is missing.
    :raises BrokerUnavailableError: one of the brokers did not answer.
    """
    wanted = set(ids)
    before = session.coordinator.coordinator_leaders()
    described = session.coordinator.describe(wanted)
    open_somewhere = listed_open(session)
    if before is None or before != session.coordinator.coordinator_leaders():
        return {}
    return {
        name: described.get(name)
        for name in sorted(wanted - open_somewhere)
        if is_over(described.get(name))
    }


def listed_open(session: Session) -> set[str]:
    """Our transactional ids that any broker lists as open."""
    return set(session.coordinator.list_open(namespace_prefix(session.namespace, session.ledger.ledger_id)))


def is_over(seen: TransactionDescription | None) -> bool:
    """Whether one coordinator calls it so; None: it knows no such id. No I/O."""
    return seen is None or not (seen.is_open or seen.coordinator_state is CoordinatorState.UNKNOWN)
