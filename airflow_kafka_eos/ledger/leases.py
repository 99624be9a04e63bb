"""Turns: who may make, of the things that Airflow makes once, which ones now (docs/adr/0022).

Rule: turns-for-the-first-event.

A turn ends by time alone, by the ledger's own clock: what its holder made is seen in Airflow, not here.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from hashlib import sha256

from sqlalchemy import Connection, and_, insert, or_, select, update

from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.database import insert_first
from airflow_kafka_eos.ledger.slots import clock, text_of
from airflow_kafka_eos.ledger.tables import for_people


def take(connection: Connection, what: Collection[str], by: str, turn: timedelta) -> str | None:
    """Take the turn with all of ``what``, or go on holding it from now on, and be told who else has one of them.

    Always in the same order, so that of two who want the same things, one gets all of them: whoever has the first one
    keeps it by asking again.

    :param turn: how long a turn is.
    :returns: None: all are ``by``'s. Else whose the first is that is not.
    """
    c, by = t.turns.c, for_people(by)
    for digest in sorted(sha256(one.encode()).hexdigest() for one in what):
        now = clock(connection)
        taken = {"taken_by": by, "taken_at": text_of(now)}
        is_free = or_(c.taken_by == by, c.taken_at <= text_of(now - turn))
        while True:  # each round that is lost, somebody else has won
            mine = update(t.turns).where(and_(c.what_sha256 == digest, is_free)).values(taken)
            if connection.execute(mine).rowcount == 1:
                break
            holder = connection.execute(select(c.taken_by).where(c.what_sha256 == digest)).scalar_one_or_none()
            if holder is not None:
                return str(holder)
            if insert_first(connection, insert(t.turns).values(taken | {"what_sha256": digest})):
                break
    return None
