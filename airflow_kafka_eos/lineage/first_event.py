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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_kafka_eos.load import LoadIdentity, LoadState

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import LoadRow

log = logging.getLogger(__name__)

#: Loads that were committed so lately may be about to tell of their topics.
LATELY = timedelta(minutes=5)
#: Seconds: the task behind a commit has begun, and its success is with Airflow, by then; on a busy machine too.
A_TURN_S = 30.0
#: So many who do not tell are waited for at most: whoever holds back longer is not about to tell.
MAX_TURNS = 4
_LOOK_S = 1.0


@dataclass(frozen=True)
class Ahead:
    """The loads that go first with a topic, each as an event's extra names it."""

    #: they tell by the alias that we tell by
    kin: frozenset[str] = frozenset()
    #: they write to the topic, and tell by another
    others: frozenset[str] = frozenset()


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
) -> Ahead:
    """Those that were committed lately, before this one. No I/O.

    In the order of their commits: whoever is first by it stays so, whoever comes later. By their keys, say, two could
    be first one after the other, and end at the same moment.

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
    first = [who for who, other in order.items() if other < own and who != load]
    return Ahead(
        kin=frozenset(str(who) for who in first if is_kin(who)),
        others=frozenset(str(who) for who in first if not is_kin(who)),
    )


def waited_for(ahead: Ahead, seen: Seen) -> frozenset[str]:
    """Whose success may make what ours would make. No I/O.

    Who has told is done with what it has, and did not make this asset: loads of one name may have topics of their own.
    """
    if seen.is_ours:
        return frozenset()
    return (ahead.kin if seen.is_made else ahead.kin | ahead.others) - seen.told


@dataclass
class Turns:
    """Of one load, over all of its topics: it waits for nobody twice in vain."""

    _given_up: set[str] = field(default_factory=set)

    def take(self, topic: str, ahead: Ahead, look: Callable[[], Seen]) -> bool:
        """Wait until it is our turn, or those ahead have had the time to tell.

        Their time begins anew whenever one of them has told, so that a load behind another one, which waits for the
        same ones and for that one, does not give up at the same moment.

        :param look: asks Airflow.
        :returns: whether we had to wait.
        """
        if not ahead.kin and not ahead.others:
            return False
        left = waited_for(ahead, look()) - self._given_up
        if not left:
            return False
        log.info(
            "Airflow does not know the asset of topic %s yet, or not that this load tells of it: waiting for loads that"
            " were committed before this one and may be about to tell: %s",
            *(topic, _named(left)),
        )
        began = time.monotonic()
        until = began + _patience(left)
        while left and time.monotonic() < min(until, began + LATELY.total_seconds()):
            time.sleep(_LOOK_S)
            before, left = left, waited_for(ahead, look()) - self._given_up
            if left != before:
                until = time.monotonic() + _patience(left)
        if left:
            log.warning(
                "topic %s: these have not told of it in %g s, this load does, without them: %s. If one of them tells at"
                " the same moment, Airflow fails its loaded or this one: clear that task then, the records are there",
                *(topic, time.monotonic() - began, _named(left)),
            )
            self._given_up |= left
        return True


def _patience(left: Collection[str]) -> float:
    return min(len(left), MAX_TURNS) * A_TURN_S


def _named(loads: Collection[str]) -> str:
    return ", ".join(sorted(loads)[:MAX_TURNS]) + (f" and {more} more" if (more := len(loads) - MAX_TURNS) > 0 else "")
