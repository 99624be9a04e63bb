"""Before a cursor is believed: do the brokers have commits of the load's name that the ledger does not know?

Rule: unknown-commit-stops. A load of a key is safe by what brokers show of that key (:mod:`.restored_ledger`). A range
rests on all loads of the name: behind a ledger that was restored, the cursor stands before what they have read since.

Loads with a cursor write under ids of their own key and attempt, which stay as their commit has left them. Pooled ids
are refused with a cursor: the next transaction under one, open or aborted, hides the commit before it.
"""

from __future__ import annotations

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import TransactionalId, name_prefix
from airflow_kafka_eos.protocol.guards.coordinator_watch import CoordinatorWatch
from airflow_kafka_eos.protocol.session import Session

_SHOWN = 5


def check_name_known(session: Session, load: LoadIdentity) -> None:
    """Refuse to read on where a load of the name is committed that the ledger has not decided.

    A commit is seen for as long as its coordinator remembers the id (``transactional.id.expiration.ms``, 7 days).

    :raises InDoubtError: there is such a load.
    :raises NotFinishedError: a coordinator was away or moved, and may have left one out of the listing.
    """
    namespace, name, ledger_id = load.namespace, load.name, session.ledger.ledger_id
    watch = CoordinatorWatch(session)
    listed = session.coordinator.list_committed(name_prefix(namespace, ledger_id, name))
    if watch.has_moved():
        raise NotFinishedError(
            "a transaction coordinator is moving or away: it is not known whether the ledger has all loads of the name",
            remedy="Check that all replicas of __transaction_state are up, then try again",
            load=str(load),
        )
    parsed = filter(None, map(TransactionalId.parse, listed))
    own = namespace, name, ledger_id
    keys = {one.load.key for one in parsed if (one.load.namespace, one.load.name, one.ledger_id) == own}
    # asked behind the listing: what is decided meanwhile is known (rule: decide-before-kafka)
    unknown = sorted(keys - session.ledger.decided_keys(namespace, name, keys)) if keys else []
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise InDoubtError(
            f"the brokers show loads of {name} as committed that the ledger does not know: "
            f"{', '.join(unknown[:_SHOWN])}{more}. They have read on from where the cursor stands",
            remedy="Nothing is read or written. If the ledger was restored from a backup, restore a newer one, or go "
            "through the steps of docs/howto-on-call.md, The ledger was restored: `airflow-kafka-eos ledger compare` "
            "shows what it has forgotten; `airflow-kafka-eos ledger new-id` and `airflow-kafka-eos cursors set` come "
            "behind that",
            load=str(load),
        )
