"""The first event of a topic's asset: loads that become visible at the same moment take turns.

Airflow makes an asset that no DAG file names together with its first event, and with the first event by an alias it
notes that the alias has the asset. Where two tasks end at once, the second meets the database's UNIQUE constraint, and
Airflow 3.3 marks it as failed for good, without retries ("Error updating Task Instance state. Setting the task to
failed", seen in a backfill): a load that is committed and visible would show as a failed run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_kafka_eos.load import LoadIdentity, LoadState

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import LoadRow

log = logging.getLogger(__name__)

#: Loads that were committed so lately may be about to tell of their topics.
LATELY = timedelta(minutes=5)
#: The task behind a commit has begun, and its success is with Airflow, by then; on a busy machine too.
A_TURN = timedelta(seconds=30)
#: Nobody waits longer for a topic: thirty silent loads are no quarter of an hour.
PATIENCE = timedelta(minutes=2)
_LOOK_S = 1.0
_NAMED = 4


@dataclass(frozen=True)
class Ahead:
    """A load that goes first with a topic."""

    #: as an event's extra names it
    load: str
    committed_at: datetime
    #: it tells by the alias that we tell by; another may make the asset, but not note that it is our alias's
    is_kin: bool


@dataclass(frozen=True)
class Seen:
    """What Airflow knows at a moment."""

    #: the topic's asset
    is_made: bool = False
    #: that our alias has it: then nothing is made by an event any more
    is_ours: bool = False
    #: loads that have told, by our alias, of whatever topics they have
    told: frozenset[str] = frozenset()


def ahead_of(
    load: LoadIdentity,
    topic: str,
    committed: Iterable[tuple[LoadRow, Collection[str]]],
    now: datetime,
    *,
    is_kin: Callable[[LoadIdentity], bool],
) -> list[Ahead]:
    """Those that were committed lately, before this one, in the order of their commits. No I/O.

    By their commits: whoever is first by them stays so, whoever comes later. By their keys, say, two could be first one
    after the other, and end at the same moment.

    :param committed: the namespace's loads, this one among them, each with the topics that it wrote to.
    :param is_kin: whether a load tells by our alias. It may tell of the same topics, though it had no record for them.
    """
    order = {
        row.load: (row.updated_at, row.load.name, row.load.key)
        for row, topics in committed
        if (topic in topics or row.load.name == load.name)
        and row.state is LoadState.COMMITTED
        and now - datetime.fromisoformat(row.updated_at) < LATELY
    }
    # told of long behind its commit: everybody who was committed lately goes first
    own = order.get(load, (now.isoformat(), load.name, load.key))
    first = sorted((who for who, place in order.items() if place < own and who != load), key=order.__getitem__)
    return [Ahead(str(who), datetime.fromisoformat(order[who][0]), is_kin(who)) for who in first]


def waited_for(ahead: Iterable[Ahead], seen: Seen, now: datetime) -> list[str]:
    """Whose success may make what ours would make, and may still come. No I/O.

    Who has told is done with what it has, and did not make this asset: loads of one name may have topics of their own.
    Of the others each has its turn, behind those before it: whoever waits for a silent one is done with it at the same
    moment, and then still waits for those before itself. So no two go at once, as long as they have patience, and one
    that is silent costs all of them one turn.
    """
    found = []
    end: datetime | None = None
    for one in ahead if not seen.is_ours else ():
        if one.load in seen.told or (seen.is_made and not one.is_kin):
            continue
        end = (one.committed_at if end is None else max(one.committed_at, end)) + A_TURN
        if now < end:
            found.append(one.load)
    return found


def take_turn(topic: str, ahead: Collection[Ahead], look: Callable[[], Seen]) -> bool:
    """Wait until it is our turn.

    :param look: asks Airflow.
    :returns: whether we had to wait.
    """
    if not ahead:
        return False
    began = now = _now()
    left = waited_for(ahead, seen := look(), now)
    if not left:
        return False
    log.info(
        "Airflow does not know the asset of topic %s yet, or not that this load tells of it: waiting for loads that"
        " were committed before this one and may be about to tell: %s",
        *(topic, _named(left)),
    )
    while left and now - began < PATIENCE:
        time.sleep(_LOOK_S)
        now = _now()
        left = waited_for(ahead, seen := look(), now)
    silent = [one.load for one in ahead if one.is_kin and one.load not in seen.told]
    if silent and not seen.is_ours:
        log.warning(
            "topic %s: this load waits no longer, after %g s, for what these have to tell: %s. If one of them tells at"
            " the same moment, Airflow fails its loaded or this one: clear that task then, the records are there",
            *(topic, (now - began).total_seconds(), _named(silent)),
        )
    return True


def _now() -> datetime:
    return datetime.now(UTC)


def _named(loads: Collection[str]) -> str:
    some = ", ".join(list(loads)[:_NAMED])
    return some + (f" and {more} more" if (more := len(loads) - _NAMED) > 0 else "")
