"""Which generation of a load a run goes on with, as the ledger has them."""

from __future__ import annotations

import logging
from itertools import count

from airflow_kafka_eos.generation import Generation, choose, load_of
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.session import Session

log = logging.getLogger(__name__)


def reload(session: Session, first: LoadIdentity, *, owner: str, whole: bool) -> LoadIdentity:
    """The load to begin; see :func:`airflow_kafka_eos.generation.choose`.

    Nothing is locked: of two runs that ask at the same time both get the same generation, and that is one load.

    :raises InDoubtError: the newest generation waits for a person, and is not the owner's to go on with.
    """
    load = load_of(first, choose(first, generations(session, first), owner=owner, whole=whole))
    if load != first:
        log.info("load %s: goes on as %s", first, load.key)
    return load


def generations(session: Session, first: LoadIdentity) -> list[Generation]:
    """All generations of a load: without a gap, each was opened behind the commit of the one before."""
    found: list[Generation] = []
    for number in count(1):
        load = load_of(first, number)
        row = session.ledger.load(load)
        if row is None:
            return found
        owners = frozenset(a.responsible for a in session.ledger.attempts(load))
        found.append(Generation(number, row.state, owners))
    raise AssertionError("count() has no end")
