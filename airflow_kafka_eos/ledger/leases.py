"""Leases: of what Airflow makes only once, who may make it now (docs/adr/0022); and who runs a streaming query.

Rule: lease-for-the-first-event.

A lease ends by time, by the ledger's own clock, or is given back.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from hashlib import sha256

from sqlalchemy import Connection, and_, delete, insert, or_, select, update

from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.database import insert_first
from airflow_kafka_eos.ledger.slots import clock, text_of
from airflow_kafka_eos.ledger.tables import for_people


def acquire(connection: Connection, what: Collection[str], *, by: str, ttl: timedelta) -> str | None:
    """Acquire the lease of all of ``what``, or renew it, or be told who else has one of them.

    Always in the same order, so that of two who want the same things, one gets all of them: whoever has the first one
    keeps it by asking again.

    :param what: names of what only one at a time may make.
    :param ttl: how long a lease is.
    :returns: None: all are ``by``'s. Else whose the first is that is not; ask again.
    """
    c, by = t.leases.c, for_people(by)
    for digest in sorted(sha256(one.encode()).hexdigest() for one in what):
        now = clock(connection)
        taken = {"taken_by": by, "taken_at": text_of(now)}
        is_free = or_(c.taken_by == by, c.taken_at <= text_of(now - ttl))
        while True:  # each round that is lost, somebody else has won
            mine = update(t.leases).where(and_(c.what_sha256 == digest, is_free)).values(taken)
            if connection.execute(mine).rowcount == 1:
                break
            other = connection.execute(select(c.taken_by).where(c.what_sha256 == digest)).scalar_one_or_none()
            if other is not None:
                return str(other)
            if insert_first(connection, insert(t.leases).values(taken | {"what_sha256": digest})):
                break
    return None


def release(connection: Connection, what: Collection[str], *, by: str) -> None:
    """Give back what is ``by``'s of it; what somebody else has by now is left to him."""
    digests = [sha256(one.encode()).hexdigest() for one in what]
    mine = and_(t.leases.c.what_sha256.in_(digests), t.leases.c.taken_by == for_people(by))
    connection.execute(delete(t.leases).where(mine))
