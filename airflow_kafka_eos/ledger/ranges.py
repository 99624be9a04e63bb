"""The range that an attempt reads: taken from the cursor once, pinned to an end, and the same for each further attempt.

Rule: range-is-pinned.

Each function is one database transaction's work, with the load's row locked, and the cursor's behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, insert, update

from airflow_kafka_eos import position
from airflow_kafka_eos.errors import ConfigurationError, NotFinishedError
from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.cursors import (
    begin_at,
    change,
    check_row,
    locked_cursor,
    no_range,
    range_row,
    ranges_of,
)
from airflow_kafka_eos.ledger.decisions import why_undecidable
from airflow_kafka_eos.ledger.named_ranges import check_named, check_own
from airflow_kafka_eos.ledger.queries import Locked, load_row, must_lock, now
from airflow_kafka_eos.ledger.rows import AttemptRow, CursorRow, RangeRow
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict


def take(
    connection: Connection,
    load: LoadIdentity,
    number: int,
    *,
    first_since: Any = None,
    named: tuple[Any, Any] | None = None,
    chosen: Mapping[int, Any] | None = None,
) -> RangeRow:
    """The range that an attempt reads; the same again when it is asked for again.

    Once an attempt has an end, each further one of the load has the same range, unless the cursor has moved since, a
    check has refused what was read, or there was nothing in it (rule: range-is-pinned).

    :param first_since: the position of a cursor that no decision and no person has moved yet.
    :param named: the range that somebody has named; the cursor is not moved then, and not asked where it is.
    :param chosen: ends that earlier attempts' jobs have chosen, and nobody has recorded, by number.
    :raises UndecidableError: the attempt cannot be decided any more.
    :raises InDoubtError: the cursor is in doubt, or the load that has its last range is (rule: cursor-in-doubt-stops).
    :raises NotFinishedError: another load has a range of it, and is not through (rule: one-load-per-cursor); or what a
        reload repeats is not COMMITTED.
    :raises ConfigurationError: the run's data interval is before that of the load that moved the cursor last; a named
        range is of another kind of position, is not behind the cursor, or another load has a part of it by name; a
        named range lies before the cursor; or a reload has no range to repeat.
    """
    locked = must_lock(connection, load)
    attempt = locked.attempt(number)
    _check_open(locked, attempt)
    known = ranges_of(connection, load)
    mine = next((one for one in known if one.attempt == number), None)
    if mine is not None:
        return mine
    cursor = locked_cursor(connection, load, first_since)
    if named is not None:
        # with the cursor's row locked: of two that come at once, one sees the other
        check_named(connection, load, named)
    fixed = _of_first_generation(connection, load) if named is None else named
    interval = locked.row.data_interval
    check_row(cursor, load, None if interval is None else interval[0], named=fixed is not None)
    until: Any
    if fixed is not None:
        (since, until), moves = fixed, None
        if cursor.position is not None and cursor.moved_at is not None:
            position.is_same(cursor.position, since, "the named range, beside the cursor,")  # of one kind
    else:
        cursor = begin_at(connection, load, cursor, first_since)
        since, moves = cursor.position, cursor.moves
        since, until = _pinned(known, cursor, chosen or {}, locked) or (since, None)
        if until is not None:
            check_own(connection, load, (since, until))
        change(connection, load, load_id=locked.id)
    row = RangeRow(load, number, since, until, moves, now())
    connection.execute(
        insert(t.ranges).values(
            attempt_id=locked.attempt_id(number),
            since_position=position.dump(since),
            until_position=None if until is None else position.dump(until),
            moves=moves,
            taken_at=row.taken_at,
        )
    )
    return row


def pin(connection: Connection, load: LoadIdentity, number: int, since: Any, until: Any) -> RangeRow:
    """Record where an attempt's range ends; what was recorded first stands, and is returned.

    :param since: the range's own, or with what that says nothing of.
    :raises UndecidableError: the attempt cannot be decided any more, or has no range.
    :raises ConfigurationError: ``until`` is before ``since``, ``since`` is not what the cursor says, or somebody has
        named a part of the range.
    """
    locked = must_lock(connection, load)
    attempt = locked.attempt(number)
    row = range_row(connection, load, number)
    if row is None:
        raise no_range(load, number, "it has taken no range of the cursor")
    if row.until is not None:
        return row
    _check_open(locked, attempt)
    if not position.extends(since, row.since):
        raise ConfigurationError(
            f"the source begins its range at {position.dump(since)}, the cursor is at {position.dump(row.since)}: what "
            "lies between would be left out, or read twice",
            remedy="bounds(since) returns since as it is, at most with partitions that it does not name",
            load=str(load),
            attempt=number,
        )
    if position.is_behind(until, since, "the range") and not row.is_named:
        check_own(connection, load, (since, until))
    values = {"since_position": position.dump(since), "until_position": position.dump(until)}
    connection.execute(
        update(t.ranges).where(t.ranges.c.attempt_id == locked.attempt_id(number)).values(values)
    )
    return replace(row, since=since, until=until)


def _check_open(locked: Locked, attempt: AttemptRow) -> None:
    problem = why_undecidable(locked, attempt) if attempt.verdict is not Verdict.COMMIT else "it is decided already"
    if problem:
        raise no_range(locked.row.load, attempt.number, problem)


def _pinned(
    known: list[RangeRow], cursor: CursorRow, chosen: Mapping[int, Any], locked: Locked
) -> tuple[Any, Any] | None:
    ends = [
        (one, one.until if one.until is not None else chosen.get(one.attempt))
        for one in known
        if one.moves == cursor.moves
    ]
    # what a check has refused, and what had nothing in it, is looked at anew: the source may have something else by now
    refused = {a.number for a in locked.attempts if a.is_refused}
    void = {position.dump(until) for one, until in ends if one.attempt in refused}
    for one, until in ends:  # the oldest that has an end: all behind it have the same
        if until is not None and position.dump(until) not in void and position.is_behind(until, one.since, "the range"):
            return one.since, until
    return None


def _of_first_generation(connection: Connection, load: LoadIdentity) -> tuple[Any, Any] | None:
    """What a reload reads once more; None: this is no reload."""
    key = first_key(load.key)
    if key == load.key:
        return None
    first = replace(load, key=key)
    row = load_row(connection, first)
    if row is None or row.state is not LoadState.COMMITTED:
        raise NotFinishedError(
            f"load {first}, which this one repeats, is not COMMITTED",
            remedy=f"Finish it first: `airflow-kafka-eos loads recover {first.in_command}`",
            load=str(load),
        )
    found = range_row(connection, first, row.newest_attempt)
    if found is None or found.until is None:
        raise ConfigurationError(
            f"load {first}, which this one repeats, was loaded without a cursor: nobody knows what it has read",
            remedy='Name the range in the run\'s conf: {"cursor_range": {"since": …, "until": …}}',
            load=str(load),
        )
    return found.since, found.until


