"""What the word of transaction coordinators is worth: did one move meanwhile, and have all of them ended an id?

Rules: listing-only-adds, forgotten-markers.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_kafka_eos.errors import AccessError, KafkaEosError, NotFinishedError
from airflow_kafka_eos.kafka.admin.coordinator import are_seen
from airflow_kafka_eos.kafka.admin.list_permissions import REMEDY
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import TransactionDescription

#: What to look at where one is moving or away for long; for remedies.
COORDINATORS = (
    "Bring up the brokers of the partitions of __transaction_state that have no leader: `kafka-topics.sh "
    "--bootstrap-server … --describe --unavailable-partitions --topic __transaction_state` names them. One is "
    "enough to stop this, for nobody knows what it has"
)


class CoordinatorWatch:
    """Did a coordinator move? Make one before brokers are asked, and ask it behind their last answer.

    A coordinator that moves, or is away, hides its ids from a listing.
    """

    def __init__(self, session: Session) -> None:
        self._coordinator = session.coordinator
        self._before = self._coordinator.epochs()

    def has_moved(self) -> bool:
        """Whether one has moved since, or is away: what was listed meanwhile may lack something."""
        return self._before is None or self._before != self._coordinator.epochs()

    def doubt(self) -> KafkaEosError | None:
        """Why there may be one that was not asked, with what to do; None: all were."""
        if self._before is None or self.has_moved():
            return NotFinishedError(
                "a transaction coordinator is moving or away, and may have it",
                remedy="Look again when all replicas of __transaction_state are up",
            )
        if not are_seen(self._before):
            return AccessError(
                "it is not shown where the transaction coordinators are: one that is not available may have it",
                remedy=REMEDY,
            )
        return None


def finished(session: Session, ids: Iterable[str]) -> dict[str, TransactionDescription | None]:
    """Those of our transactional ids that no coordinator has anything to do for, each as its coordinator shows it.

    None stands for an id that it does not know. Only these may be ended past their coordinators. One answer is not
    enough for that: a broker that has lost a coordinator's partition and has not heard of it (paused, or cut off from
    the controllers) answers from what it remembers, or knows no such id. Then the coordinator that is at work could
    write the opposite marker. So no broker at all may list the id as open.

    Empty while a coordinator moves or is away: ask again.

    :raises AccessError: DESCRIBE on one of them is missing.
    :raises BrokerUnavailableError: one of the brokers did not answer.
    """
    wanted = set(ids)
    watch = CoordinatorWatch(session)
    described = session.coordinator.describe(wanted)
    open_somewhere = listed_open(session)
    if watch.has_moved():
        return {}
    return {
        name: described.get(name) for name in sorted(wanted - open_somewhere) if is_finished(described.get(name))
    }


def listed_open(session: Session) -> set[str]:
    """Our transactional ids that any broker lists as open."""
    return set(session.coordinator.list_open(session.id_prefix))


def is_finished(seen: TransactionDescription | None) -> bool:
    """Whether one coordinator calls it so; None: it knows no such id. No I/O."""
    return seen is None or seen.coordinator_state.is_at_rest
