"""What was begun: the loads of a run, and the first one of a name. Functions take a connection."""

from __future__ import annotations

from sqlalchemy import Connection, and_, func, select

from airflow_kafka_eos.ledger import tables as t

#: No text that begins like another one comes behind that one and this.
_LAST_CHARACTER = "\U0010ffff"


def begun_by(connection: Connection, prefix: str) -> list[int]:
    """Row ids of the loads whose newest attempt was opened or submitted by an owner that begins like this."""
    of = t.attempts.c
    found: set[int] = set()
    for column in (of.owner, of.submitted_by):
        query = (
            select(t.loads.c.id)
            .join(t.attempts, and_(of.load_id == t.loads.c.id, of.number == t.loads.c.newest_attempt))
            # no LIKE: SQLite's is blind to case, and PostgreSQL's finds no index of the usual kind
            .where(column >= prefix, column < prefix + _LAST_CHARACTER)
        )
        found.update(connection.execute(query).scalars())
    return sorted(found)


def first_begun(connection: Connection, namespace: str, name: str, *, since: str = "") -> str | None:
    """When the first load of a name was begun, as a UTC timestamp; None where there is none.

    :param since: of those that were begun from this moment on.
    """
    c = t.loads.c
    query = select(func.min(c.created_at)).where(c.namespace == namespace, c.name == name, c.created_at >= since)
    found: str | None = connection.execute(query).scalar_one()
    return found
