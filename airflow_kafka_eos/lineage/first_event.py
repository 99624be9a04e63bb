"""The first event of a topic's asset: loads that become visible at the same moment take turns.

Airflow makes an asset that no DAG file names together with its first event. Where two tasks end at once, the second
meets the database's UNIQUE constraint, and Airflow 3.3 marks it as failed for good, without retries ("Error updating
Task Instance state. Setting the task to failed", seen in a backfill): a load that is committed and visible would show
as a failed run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
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
#: So many are waited for at most: whoever holds back longer is not about to tell.
MAX_TURNS = 4
_LOOK_S = 0.3


def ahead_of(
    load: LoadIdentity, topic: str, committed: Iterable[tuple[LoadRow, Collection[str]]], now: datetime
) -> set[str]:
    """The loads that go first with a topic: those that were committed lately, before this one. No I/O.

    In the order of their commits: whoever is first by it stays so, whoever comes later. By their keys, say, two could
    be first one after the other, and end at the same moment.

    :param committed: the namespace's loads, this one among them, each with the topics that it wrote to. One of the
        same name may tell of the same topics, though it had no record for them.
    :returns: each as an event's extra names it.
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
    return {str(who) for who, other in order.items() if other < own and who != load}


def take_turn(
    topic: str, ahead: Collection[str], *, is_known: Callable[[], bool], told: Callable[[], Collection[str]]
) -> None:
    """Wait until Airflow has made the asset, or everybody ahead has told of its topics or has had the time to.

    Who has told and did not make the asset never will: loads of one name need not have their topics in common.

    :param told: loads that Airflow has an event of.
    """
    waited_for = set(ahead) - set(told()) if ahead else set()
    if not waited_for:
        return
    patience = min(len(waited_for), MAX_TURNS) * A_TURN_S
    names = ", ".join(sorted(waited_for)[:MAX_TURNS]) + (", ..." if len(waited_for) > MAX_TURNS else "")
    log.info(
        "Airflow does not know the asset of topic %s yet: waiting, %g s at most, for loads that were committed before"
        " this one and may be about to tell of it: %s",
        *(topic, patience, names),
    )
    until = time.monotonic() + patience
    while waited_for and time.monotonic() < until and not is_known():
        time.sleep(_LOOK_S)
        waited_for -= set(told())
