"""The first event of a topic's asset: tasks whose success would make the same in Airflow take turns.

Rule: turns-for-the-first-event.

Airflow makes an asset that no DAG file names together with its first event, and with the first event by an alias it
notes that the alias has the asset. Where two tasks end at once, the second meets the database's UNIQUE constraint, and
Airflow 3.3 marks it as failed for good, without retries ("Error updating Task Instance state. Setting the task to
failed", seen in a backfill): a load that is committed and visible would show as a failed run. See docs/adr/0022.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import timedelta

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from airflow_kafka_eos.errors import KafkaEosError, TerminalError

log = logging.getLogger(__name__)

#: Airflow has the success of whoever took its turn by then, on a busy machine too.
A_TURN = timedelta(seconds=60)
#: Nobody waits longer.
PATIENCE = timedelta(minutes=3)
_LOOK_S = 1.0


def to_be_made(uri: str, alias: str, *, is_made: bool) -> list[str]:
    """Names of what the first event of an asset by an alias makes in Airflow. No I/O.

    :param is_made: Airflow has the asset, and has yet to note that the alias has it.
    """
    of_alias = f"{uri} by {alias}"
    return [of_alias] if is_made else [uri, of_alias]


def take_turn(look: Callable[[], Collection[str]], take: Callable[[Collection[str]], str | None]) -> None:
    """Wait until nothing is left to be made, or it is our turn to make all of it.

    Its turn is over for whoever took it when Airflow has its success, for then nothing is left; or by time, where it
    died. Behind :data:`PATIENCE`, or where the ledger refuses a turn for good, this goes on all the same: the records
    are there, and readers want to be told.

    :param look: asks Airflow for what is left.
    :param take: takes the turn with that; None, or who has it.
    """
    began, said = time.monotonic(), ""
    while left := look():
        try:
            holder = take(left)
            if holder is None:
                return
            reason = f"{holder} has the turn"
            may_come = True
        except (KafkaEosError, AirflowException, AirflowRuntimeError) as e:  # a connection that Airflow does not give
            reason, may_come = f"{type(e).__name__}: {e}", not isinstance(e, TerminalError)
        waited_s = time.monotonic() - began
        if not may_come or waited_s >= PATIENCE.total_seconds():
            log.warning(
                "after %.0f s waits no longer for its turn to make in Airflow: %s (%s). Should another task do that at"
                " the same moment, Airflow fails one of both: clear its loaded then, the records are there",
                *(waited_s, ", ".join(sorted(left)), reason),
            )
            return
        if reason != said:
            log.info("waits for its turn to make in Airflow: %s (%s)", ", ".join(sorted(left)), reason)
            said = reason
        time.sleep(_LOOK_S)
