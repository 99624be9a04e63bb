"""The range of a load with a cursor: taken in the ledger before its application is told what to read.

Rules: range-is-pinned, one-load-per-cursor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_kafka_eos import position
from airflow_kafka_eos.cursor import Cursor
from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.ledger.rows import AttemptRow, RangeRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.guards.known_commits import check_name_known
from airflow_kafka_eos.protocol.session import Session


@dataclass(frozen=True)
class Wanted:
    """:param named: the range by name, rendered; None: the cursor's own.
    :param sql: the load is ``sql=``, which compares with ``:since``.
    """

    cursor: Cursor
    named: tuple[Any, Any] | None = None
    sql: bool = False


def check_range(session: Session, load: LoadIdentity, wanted: Wanted) -> None:
    """Whether a range may be taken, before an attempt is: what is refused here leaves nothing behind.

    :raises KafkaEosError: see :func:`~airflow_kafka_eos.ledger.ranges.take` and :func:`.check_name_known`.
    """
    row = session.ledger.load(load)
    if row is not None and row.state.is_decided:
        return  # nothing is read
    interval = None if row is None or row.data_interval is None else row.data_interval[0]
    check_name_known(session, load)
    if wanted.named is not None:
        session.ledger.check_named_range(load, wanted.named)
    fixed = wanted.named is not None or first_key(load.key) != load.key
    session.ledger.check_cursor(load, interval, named=fixed)


def take_range(
    session: Session, row: AttemptRow, wanted: Wanted, *, chosen: Callable[[int], str | None]
) -> RangeRow:
    """The range that an attempt is to read.

    Where none can be taken, the attempt is left to the task's retry, which opens the next one, or to cleanup.

    :param chosen: the end that an earlier attempt's job has chosen, by number, as JSON.
    :raises KafkaEosError: no range can be taken, or the source cannot say where it ends; see
        :func:`~airflow_kafka_eos.ledger.ranges.take`.
    """
    load, number, source = row.load, row.number, wanted.cursor.source
    earlier = {
        one.attempt: json.loads(text)
        for one in session.ledger.ranges(load)
        if one.until is None and one.attempt != number and (text := chosen(one.attempt)) is not None
    }
    first = wanted.cursor.first_since
    found = session.ledger.take_range(
        load,
        number,
        first_since=None if first is None else position.checked(first, "first_since"),
        named=wanted.named,
        chosen=earlier,
    )
    if wanted.sql and found.since is None:
        raise ConfigurationError(
            f"the cursor of {load.name} is at null, and the load is sql=…: a comparison with NULL finds nothing",
            remedy="Set it to what is before every row: `airflow-kafka-eos cursors show` and `cursors set`",
            load=str(load),
            attempt=number,
        )
    if source is None:
        return found
    if found.until is not None:
        source.check(found.since, found.until)
        return found
    since, until = source.bounds(found.since)
    since = None if since is None else position.checked(since, "the source's since")
    until = position.checked(until, "the source's until")
    source.check(since, until)  # before it is pinned: a range that cannot be read would be every retry's
    return session.ledger.pin_range(load, number, since, until)


def check_same(session: Session, row: AttemptRow, named: tuple[Any, Any] | None) -> None:
    """Of a load that is decided already: it has not read another range than the one that this run names.

    Rule: key-names-the-data.

    :raises UndecidableError: it has.
    """
    if named is None:
        return
    found = session.ledger.range(row.load, row.number)
    if found is not None and found.until is not None:
        same = position.dump([found.since, found.until]) == position.dump(list(named))
        if same:
            return
        read = f"from {position.dump(found.since)} to {position.dump(found.until)}"
    else:
        read = "without a cursor"
    raise UndecidableError(
        f"this key was loaded {read}, by {row.responsible}, decided at {row.decided_at}; this run names the range from "
        f"{position.dump(named[0])} to {position.dump(named[1])}: nothing of that was read",
        remedy="One key loads once: give a range by name a load_key of its own, or on_committed='reload'",
        load=str(row.load),
        attempt=row.number,
    )


def record_chosen(session: Session, load: LoadIdentity, number: int, chosen: Callable[[], str | None]) -> None:
    """Take the end that an attempt's job has chosen into the ledger, before the attempt is recorded as prepared.

    :param chosen: as the store has it, as JSON; asked only where nothing was chosen before the job ran.
    :raises KafkaEosError: see :func:`~airflow_kafka_eos.ledger.ranges.pin`.
    """
    row = session.ledger.range(load, number)
    if row is not None and row.until is None and (text := chosen()) is not None:
        session.ledger.pin_range(load, number, row.since, json.loads(text))
