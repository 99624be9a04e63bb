"""Before an embedded ledger begins the first load of a name: has another ledger loaded that name already?

Rule: same-ledger.

The embedded ledger is a file that makes itself, in the Airflow home of whoever comes first. A second scheduler that
takes over on another host, or a home that was lost, has an empty one: what is cleared or backfilled there would be
loaded once more. What brokers remember of the other ledger's transactions says so, for as long as they do
(``transactional.id.expiration.ms``, 7 days). By the name and not the key: pooled ids bear none, and a run of today is
the first that comes.

Nothing is asked of brokers once the ledger has decided a load of the name. A ledger that a person has given another id
is meant to be there.
"""

from __future__ import annotations

import time

from airflow_kafka_eos.errors import NotFinishedError, OtherLedgerError
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import PooledId, counted, parse, prefix_of_all_ledgers
from airflow_kafka_eos.protocol.guards.coordinator_watch import COORDINATORS, CoordinatorWatch
from airflow_kafka_eos.protocol.guards.restored_ledger import SETTLES_S
from airflow_kafka_eos.protocol.session import Session

_SHOWN = 3
_PAUSE_S = 0.2


def check_no_other_ledger(session: Session, load: LoadIdentity) -> None:
    """Refuse the first load of a name in an embedded ledger where brokers show that another one has loaded the name.

    :raises OtherLedgerError: there is a commit of the name under another ledger's id.
    :raises NotFinishedError: a coordinator was away or moved, and may have left one out of the listing. It is waited
        for a moment.
    """
    ledger = session.ledger
    if not ledger.is_embedded or not ledger.is_new_to(load.namespace, load.name):
        return
    give_up = time.monotonic() + SETTLES_S
    while True:
        watch = CoordinatorWatch(session)
        _check_committed_by_none(session, load)
        if not watch.has_moved():
            return
        if time.monotonic() >= give_up:
            raise NotFinishedError(
                "a transaction coordinator is moving or away: it is not known whether another ledger has loaded this "
                "name",
                remedy=f"{COORDINATORS}. Then try again",
                load=str(load),
            )
        time.sleep(_PAUSE_S)


def _check_committed_by_none(session: Session, load: LoadIdentity) -> None:
    ledger = session.ledger
    by_ledger: dict[str, list[str]] = {}
    for one in session.coordinator.list_committed(prefix_of_all_ledgers(load.namespace)):
        found = parse(one)
        if found is None or found.ledger_id == ledger.ledger_id:
            continue
        name = found.load_name if isinstance(found, PooledId) else found.load.name
        if name == load.name:
            by_ledger.setdefault(found.ledger_id, []).append(one)
    if by_ledger:
        other = max(by_ledger, key=lambda of: len(by_ledger[of]))
        seen = "; ".join(f"ledger {of}: {counted(ids)}" for of, ids in sorted(by_ledger.items())[:_SHOWN])
        raise OtherLedgerError(
            f"the ledger {ledger!r} is new and has no load of this name, and brokers show some as committed by another "
            f"one ({seen}): here they would be loaded again",
            remedy="Nothing was written. Use the ledger that has them: let all schedulers and workers name one by "
            "ledger_conn_id, or have its file in their Airflow home. If it is lost, `airflow-kafka-eos ledger compare "
            f"--ledger-id {other}` shows which loads brokers remember of it; say so of each that the topics have, by "
            "`airflow-kafka-eos loads set-committed`. If the topics have none of it any more, or it is another "
            "deployment's, which has the same namespace: set a namespace of its own, or run `airflow-kafka-eos ledger "
            "new-id`, which lets this ledger begin anew",
            load=str(load),
            transactional_id=by_ledger[other][0],
        )
