"""What went wrong last with a load that is not through, kept in its row's reason until it goes on.

Only a note: nothing is decided by it. With the attempt's abort it becomes part of that decision's reason.
"""

from __future__ import annotations

from sqlalchemy import Connection, update

from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import Locked, lock, now
from airflow_kafka_eos.ledger.text import for_people, for_reason
from airflow_kafka_eos.load import LoadIdentity, LoadState

#: Before the decision, and behind it as long as nothing was lost: REPAIRING, IN_DOUBT and GIVEN_UP have reasons that
#: say more, COMMITTED and ABORTED want none.
_NOTED = frozenset({LoadState.PREPARING, LoadState.PREPARED, LoadState.COMMITTING})


def note_failure(
    connection: Connection, load: LoadIdentity, by: str, reason: str, number: int | None, sweeping: bool
) -> bool:
    """Note it; False, and nothing changed, where the load has gone on without whoever failed."""
    locked = lock(connection, load)
    if locked is None or locked.newest is None:
        return False
    newest = locked.newest
    if newest.responsible != for_people(by) or number not in (None, newest.number):
        return False
    if locked.row.state not in (_NOTED | {LoadState.ABORTING} if sweeping else _NOTED):
        return False
    values = {"reason": for_reason(reason), "updated_at": now()}
    connection.execute(update(t.loads).where(t.loads.c.id == locked.id).values(values))
    return True


def with_failure(locked: Locked, number: int, reason: str) -> str:
    """Why an attempt is aborted, with what had gone wrong before with it."""
    failed = locked.row.reason if locked.newest is not None and locked.newest.number == number else ""
    return f"{reason}: {failed}" if failed and failed not in reason else reason
