"""Generations of a load: a reload is a load with a key of its own, asked for by name; one key loads once.

Rule: one-key-loads-once.

The first generation of key ``k`` is ``k`` itself, the next ones are ``k~reload-2``, ``k~reload-3``, …; each is a load
like any other to the ledger and to Kafka. Such keys are made here only: an author's own is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError
from airflow_kafka_eos.load import GIVE_UP, STAYS_GIVEN_UP, WRITE, LoadIdentity, LoadState, filled_in

_RESERVED = re.compile(r"~reload-[0-9]+\Z")


@dataclass(frozen=True)
class Generation:
    """What the ledger knows of one generation; numbers count from 1 without a gap.

    :param owners: who answers for its attempts.
    """

    number: int
    state: LoadState
    owners: frozenset[str]


def load_of(first: LoadIdentity, generation: int) -> LoadIdentity:
    """The identity of a generation of a load."""
    return first if generation == 1 else replace(first, key=f"{first.key}~reload-{generation}")


def first_key(key: str) -> str:
    """The key that an author chose, of that of any generation."""
    return _RESERVED.sub("", key)


def check_not_reserved(load: LoadIdentity) -> None:
    """An author's key that looks like a reload would be taken for one.

    :raises ConfigurationError: naming the key.
    """
    if _RESERVED.search(load.key):
        raise ConfigurationError(
            f"load_key {load.key!r} ends like the key of a reload",
            remedy="Keys that end with ~reload-<number> are made by on_committed='reload'; choose another load_key",
            load=str(load),
        )


def choose(first: LoadIdentity, found: Sequence[Generation], *, owner: str, whole: bool) -> int:
    """The generation that a run goes on with: the newest, or the one behind it where the newest is committed.

    One that is not committed is gone on with, so that a ``begin`` that is tried again makes no second copy. In doubt it
    is so for its own group only, whose prepare may be what brings back the lost records (docs/adr/0014).

    :param found: all generations of the load, the oldest first.
    :param owner: the run's group.
    :param whole: whether all steps of the group run (again). Else a part of them was cleared, to go on with what the
        group has already: then nothing new is opened.
    :raises InDoubtError: the newest is given up, or in doubt and another group's: a reload does not run round an
        unfinished decision.
    """
    if not found:
        return 1
    newest = found[-1]
    if not whole:
        own = [g.number for g in found if owner in g.owners]
        return max(own, default=newest.number)
    if newest.state is LoadState.IN_DOUBT and owner in newest.owners:
        return newest.number
    match newest.state:
        case LoadState.IN_DOUBT | LoadState.GIVEN_UP:
            load = load_of(first, newest.number)
            raise InDoubtError(
                f"the newest generation of the load is {newest.state.value}: part of it may be visible already",
                remedy=f"Look at it with `airflow-kafka-eos loads show {load.in_command}`, finish it with "
                f"`airflow-kafka-eos loads recover {load.in_command}`, and clear the group then. "
                f"Else {filled_in(GIVE_UP, load)}; then {WRITE}"
                if newest.state is LoadState.IN_DOUBT
                else filled_in(STAYS_GIVEN_UP, load),
                load=str(load),
            )
        case LoadState.COMMITTED:
            return newest.number + 1
        case LoadState.PREPARING | LoadState.PREPARED | LoadState.ABORTING | LoadState.ABORTED:
            return newest.number
        case LoadState.COMMITTING | LoadState.REPAIRING:
            return newest.number
    assert_never(newest.state)
