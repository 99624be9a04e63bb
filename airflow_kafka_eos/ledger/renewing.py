"""A new random id for a ledger that was restored from a backup (rule 6)."""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, select, update

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.ledger import decisions
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.queries import ledger_id, load_rows
from airflow_kafka_eos.load import LoadState

_UNFINISHED = (LoadState.COMMITTING.value, LoadState.REPAIRING.value, LoadState.IN_DOUBT.value)
_SHOWN = 5


def new_id(connection: Connection, decided_by: str) -> tuple[str, str]:
    """Give the ledger another id; the old one and the new one.

    Every undecided attempt is aborted with it: its transactions carry the old id, and are nobody's from here on.

    :raises ConfigurationError: a decided load is not finished; under another id it could never be rolled forward.
    """
    query = select(t.loads.c.namespace, t.loads.c.name, t.loads.c.load_key).where(t.loads.c.state.in_(_UNFINISHED))
    unfinished = [".".join(row) for row in connection.execute(query)]
    if unfinished:
        raise ConfigurationError(
            f"{len(unfinished)} decided loads are not finished: {', '.join(unfinished[:_SHOWN])}",
            remedy="Run `airflow-kafka-eos loads recover` for them first: their transactions have the present id, and "
            "are nobody's under another. What can never be completed is closed by `loads give-up`; `transactions "
            "force-terminate` then ends what it has open, before the new id",
        )
    for row in load_rows(connection, None, None):
        decisions.make_undecidable(connection, row.load, row.newest_attempt, decided_by, "the ledger got a new id")
    old, new = ledger_id(connection), secrets.token_hex(5)
    connection.execute(update(t.ledger).values(ledger_id=new))
    return old, new
