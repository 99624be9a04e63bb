"""Ranges by name, beside each other and beside the cursor: no record is read twice that nobody wants twice.

Rule: range-is-pinned. To name what the cursor's own loads have read is to want it twice; what they are about to read,
or another key has named, is not.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, or_, select

from airflow_kafka_eos import position
from airflow_kafka_eos.errors import ConfigurationError, NotFinishedError
from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.cursors import cursor_row, how_to_end, ranges_of
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict


class Named(NamedTuple):
    """A range by name that may be committed, or is.

    :param is_closed: nothing of its load is open any more.
    """

    load: LoadIdentity
    since: Any
    until: Any
    taken_at: str
    is_closed: bool
    is_given_up: bool

    def overlaps(self, since: Any, until: Any) -> bool:
        """
        :raises ConfigurationError: they are of kinds that nobody can compare.
        """
        return position.overlaps((since, until), (self.since, self.until), f"the range, beside that of {self.load},")

    def __str__(self) -> str:
        return f"from {position.dump(self.since)} to {position.dump(self.until)}"


def check_named(connection: Connection, load: LoadIdentity, named: tuple[Any, Any]) -> None:
    """Whether a range may be named by a load: it lies behind the cursor, and none of another key has named a part of
    it, and may be committed.

    One conf goes to every run of a backfill, and one default of a parameter to every run: each has a key of its own.

    :raises ConfigurationError: there is such a load; or the cursor's own loads would read the range once more.
    :raises NotFinishedError: there is one that was given up, and what it has open may become visible yet.
    """
    _check_behind_the_cursor(connection, load, named)
    for other in _named(connection, load):
        if first_key(other.load.key) == first_key(load.key) or not other.overlaps(*named):
            continue
        if _is_repeated(connection, other.load):
            continue
        if not other.is_given_up:
            raise ConfigurationError(
                f"load {other.load} has read the range {other} by name, or is about to: this run would read a part of "
                "it once more",
                remedy="Name what no run has named yet. In a backfill, whose conf goes to each of its runs, let each "
                "name its own: Cursor(since='{{ data_interval_start | ts }}', until='{{ data_interval_end | ts }}'), "
                "with a timetable that has intervals (docs/cursors.md). To load the same once more, on purpose, reload "
                f"{other.load.key}: on_committed='reload'",
                load=str(load),
            )
        if not other.is_closed:
            raise NotFinishedError(
                f"load {other.load}, which was given up, has named the range {other}, and nobody has seen that nothing "
                "of it is open",
                remedy=f"Run `airflow-kafka-eos cleanup {other.load.in_command}` until it finds the load clean, then "
                "look what is visible",
                load=str(load),
            )


def check_own(connection: Connection, load: LoadIdentity, range_: tuple[Any, Any]) -> None:
    """Whether the cursor's own range has nothing in it that somebody has named, since a person has set the cursor last.

    A decision that moves the cursor knows of no range by name: what lies ahead of it is compared by each load again.

    :raises ConfigurationError: it has: how far what is loaded reaches, a person has to say.
    """
    cursor = cursor_row(connection, load.namespace, load.name)
    said_at = None if cursor is None else cursor.said_at
    for other in _named(connection, load):
        if said_at is not None and other.taken_at <= said_at:
            continue  # the person has known of it
        if other.overlaps(*range_) and not _is_repeated(connection, other.load):
            raise ConfigurationError(
                f"load {other.load} has named the range {other}, a part of what the cursor would read now, from "
                f"{position.dump(range_[0])} to {position.dump(range_[1])}",
                remedy="Say where to go on: `airflow-kafka-eos cursors show` and `cursors set`. Behind the named "
                "range, and what lies before it is loaded by a run that names that; or where it is, and the named part "
                "is there twice",
                load=str(load),
            )


def _check_behind_the_cursor(connection: Connection, load: LoadIdentity, named: tuple[Any, Any]) -> None:
    cursor = cursor_row(connection, load.namespace, load.name)
    if cursor is None:
        return
    holder = cursor.holder if cursor.is_held else None
    if holder is None and cursor.moved_at is None:
        return  # its own loads have read nothing, and compare before they do
    if holder is not None and holder != load:
        held = next(row for row in reversed(ranges_of(connection, holder)) if not row.is_named)
        since, until = held.since, held.until
        # without an end it has all that comes
        if position.reaches_past(named[1], since) and (
            until is None or position.overlaps(named, (since, until), f"the named range, beside that of {holder},")
        ):
            raise NotFinishedError(
                f"load {holder} has a part of the range, from {position.dump(since)} on, and is not through",
                remedy=how_to_end(cursor),
                load=str(load),
            )
    if position.reaches_past(named[1], cursor.position):
        raise ConfigurationError(
            f"the named range ends at {position.dump(named[1])}, and the cursor is at {position.dump(cursor.position)}:"
            " its own loads would read what lies between once more",
            remedy="Name what is behind the cursor, or let its own runs read on. To go on behind the range instead, "
            "set the cursor first: `airflow-kafka-eos cursors set`",
            load=str(load),
        )


def _is_repeated(connection: Connection, load: LoadIdentity) -> bool:
    """Whether a load is a reload of what the cursor's own load has read: that is no range by name."""
    key = first_key(load.key)
    return key != load.key and any(not row.is_named for row in ranges_of(connection, replace(load, key=key)))


def _named(connection: Connection, load: LoadIdentity) -> list[Named]:
    """Ranges by name of the load's name, aborted ones left out."""
    of, c = t.loads.c, t.ranges.c
    query = (
        select(of.load_key, of.state, t.attempts.c.closed_at, c.since_position, c.until_position, c.taken_at)
        .join(t.attempts, t.attempts.c.id == c.attempt_id)
        .join(t.loads, of.id == t.attempts.c.load_id)
        .outerjoin(t.decisions, t.decisions.c.attempt_id == t.attempts.c.id)
        .where(of.namespace == load.namespace, of.name == load.name, c.moves.is_(None), c.until_position.is_not(None))
        .where(or_(t.decisions.c.verdict.is_(None), t.decisions.c.verdict == Verdict.COMMIT.value))
        .order_by(of.id)
    )
    return [
        Named(
            replace(load, key=row.load_key),
            json.loads(row.since_position),
            json.loads(row.until_position),
            row.taken_at,
            row.closed_at is not None,
            row.state == LoadState.GIVEN_UP.value,
        )
        for row in connection.execute(query)
    ]
