"""Ranges by name, beside each other and beside the cursor: no record is read twice that nobody wants twice.

Rule: range-is-pinned. To name what the cursor's own loads have read is to want it twice; what they are about to read,
or another key has named, is not.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, or_, select

from airflow_kafka_eos import position
from airflow_kafka_eos.errors import ConfigurationError, NotFinishedError
from airflow_kafka_eos.generation import first_key
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.cursors import cursor_row, how_to_end, range_row, ranges_of
from airflow_kafka_eos.ledger.queries import load_row
from airflow_kafka_eos.ledger.rows import CursorRow
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict, name_in_command

#: Ranges, and what lies between them, that an error names.
_TOLD = 5
#: Of a position in an error, and in a command: what is longer cannot be read, nor pasted.
_MAX_TEXT, _MAX_WORD = 200, 4_000


class Named(NamedTuple):
    """A range by name that may be committed, or is.

    :param is_closed: nothing of its load is open any more.
    """

    load: LoadIdentity
    since: Any
    until: Any
    taken_at: str
    is_closed: bool
    state: LoadState

    @property
    def is_given_up(self) -> bool:
        """A person has left it as it is: a part may be visible."""
        return self.state is LoadState.GIVEN_UP

    @property
    def is_through(self) -> bool:
        """What of it is visible stays so, and nothing more becomes visible."""
        return self.is_closed if self.is_given_up else self.state.is_ended

    def is_read_over(self, said_at: str | None) -> bool:
        """Whether a person has said behind its being named that own loads read over it.

        :param said_at: the cursor's.
        """
        return said_at is not None and self.taken_at <= said_at

    def is_ahead(self, at: Any) -> bool:
        """Whether own loads that go on at a position come to it; True also where nobody can tell."""
        try:
            return position.reaches_past(self.until, at)
        except ConfigurationError:
            return True

    def overlaps(self, since: Any, until: Any) -> bool:
        """
        :raises ConfigurationError: they are of kinds that nobody can compare.
        """
        return position.overlaps((since, until), (self.since, self.until), f"the range, beside that of {self.load},")

    def __str__(self) -> str:
        return f"from {_text(self.since)} to {_text(self.until)}"


def check_named(connection: Connection, load: LoadIdentity, named: tuple[Any, Any]) -> None:
    """Whether a range may be named by a load: it lies behind the cursor, and none of another key has named a part of
    it, and may be committed.

    One conf goes to every run of a backfill, and one default of a parameter to every run: each has a key of its own.

    :raises ConfigurationError: there is such a load; or the cursor's own loads would read the range once more.
    :raises NotFinishedError: there is one that was given up, and what it has open may become visible yet.
    """
    _check_behind_the_cursor(connection, load, named)
    for other in _named(connection, load.namespace, load.name):
        if first_key(other.load.key) == first_key(load.key) or not other.overlaps(*named):
            continue
        if _is_repeated(connection, other):
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
    """Whether the cursor's own range has nothing in it that somebody has named.

    Neither a decision nor a person who moves the cursor knows of the ranges ahead of it: until somebody says that own
    loads read over them, each compares its range once more.

    :raises ConfigurationError: it has, or nobody can tell: how far what is loaded reaches, a person has to say.
    """
    cursor = cursor_row(connection, load.namespace, load.name)
    said_at = None if cursor is None else cursor.said_at
    in_the_way, unlike = list[Named](), list[Named]()
    for other in _named(connection, load.namespace, load.name):
        if other.is_read_over(said_at) or _is_repeated(connection, other):
            continue
        try:
            if other.overlaps(*range_):
                in_the_way.append(other)
        except ConfigurationError:
            unlike.append(other)
    if cursor is None or not (in_the_way or unlike):
        return
    found = in_the_way + unlike
    told = [f"load {one.load}, which is {one.state.value}, has named the range {one}" for one in found[:_TOLD]]
    what = "a part of what" if in_the_way else "and nobody can tell which is first, that or what"
    raise ConfigurationError(
        f"{'; '.join(told)}{_and_more(found)}, {what} the cursor would read now, from {_text(range_[0])} to "
        f"{_text(range_[1])}",
        remedy=_how_to_go_on(cursor, in_the_way, unlike),
        load=str(load),
    )


def named_ahead(connection: Connection, namespace: str, name: str, at: Any) -> list[Named]:
    """Ranges by name, of committed loads or of ones that may be, that own loads come to which go on at a position."""
    found = _named(connection, namespace, name)
    return [one for one in found if one.is_ahead(at) and not _is_repeated(connection, one)]


def _how_to_go_on(cursor: CursorRow, in_the_way: Sequence[Named], unlike: Sequence[Named]) -> str:
    """What a person does about ranges that the cursor's own loads would read over.

    :param unlike: those of positions that nobody can compare with the cursor's.
    """
    found = [*in_the_way, *unlike]
    if under_way := [one for one in found if not one.is_through]:
        told = [f"Load {one.load}: {_how_to_end(one)}" for one in under_way[:_TOLD]]
        return (
            "Not all of it is through, and what comes to nothing is in nobody's way: see to that first, then clear "
            f"prepare. {'. '.join(told)}{_and_more(under_way)}"
        )
    partly = [str(one.load) for one in found if one.is_given_up]
    look = f"Look what is visible of {', '.join(partly[:_TOLD])}{_and_more(partly)}. " if partly else ""
    reached = None if unlike else _reached(cursor, in_the_way)
    if reached is None:
        return (
            f"{look}Where they end, beside the cursor, nobody can tell here. See how far what is loaded reaches, and "
            f"say where to go on: `{_command(cursor, '…', 'looked')} --over-named`. Own loads then read all that is "
            "behind that, whoever has named it so far"
        )
    end, gaps = reached
    behind = f"{look}Go on behind what was named: `{_command(cursor, _word(end), 'behind what was named')}`"
    if gaps:
        behind += (
            f". What lies before and between nobody has loaded then: {'; '.join(gaps[:_TOLD])}{_and_more(gaps)}. Once "
            'the cursor is set, let runs name it, a part each: {"cursor_range": {"since": …, "until": …}}'
        )
    over = _command(cursor, _word(cursor.position), "over what was named")
    return f"{behind}. Or read over it, so that it is there twice, on purpose: `{over} --over-named`"


def _reached(cursor: CursorRow, ranges: Sequence[Named]) -> tuple[Any, list[str]] | None:
    """See :func:`.position.reached`; None where nobody can tell."""
    try:
        end, gaps = position.reached(cursor.position, [(one.since, one.until) for one in ranges])
        position.check_no_gaps(end, "the end")
    except ConfigurationError:
        return None
    return end, gaps


def _how_to_end(named: Named) -> str:
    if named.is_given_up:
        return f"Run `airflow-kafka-eos cleanup {named.load.in_command}` until it finds the load clean"
    return how_to_end(named.load, named.state)


def _command(cursor: CursorRow, to: str, reason: str) -> str:
    """The command that sets a cursor which is as it is now."""
    name = name_in_command(LoadIdentity(cursor.namespace, cursor.load_name, "any"))
    return (
        f"airflow-kafka-eos cursors set {name} --expect {_word(cursor.position)} --moves {cursor.moves} --to {to} "
        f"--reason {shlex.quote(reason)}"
    )


def _word(at: Any) -> str:
    text = shlex.quote(position.dump(at))
    return text if len(text) <= _MAX_WORD else "…"


def _text(at: Any) -> str:
    text = position.dump(at)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _and_more(found: Sequence[Any]) -> str:
    return f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""


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
                remedy=how_to_end(cursor.holder, cursor.holder_state),
                load=str(load),
            )
    if position.reaches_past(named[1], cursor.position):
        raise ConfigurationError(
            f"the named range ends at {position.dump(named[1])}, and the cursor is at {position.dump(cursor.position)}:"
            " its own loads would read what lies between once more",
            remedy="Name what is behind the cursor, or let its own runs read on. To go on behind the range instead, "
            f"set the cursor first: `airflow-kafka-eos cursors show {name_in_command(load)}` has the command",
            load=str(load),
        )


def _is_repeated(connection: Connection, named: Named) -> bool:
    """Whether a range is that of a reload of what the cursor's own load has read: that is none by name."""
    key = first_key(named.load.key)
    if key == named.load.key:
        return False
    first = replace(named.load, key=key)
    row = load_row(connection, first)
    # a reload comes behind the decision, which is the newest attempt's: those of before have read nothing
    own = None if row is None else range_row(connection, first, row.newest_attempt)
    return own is not None and not own.is_named and (own.since, own.until) == (named.since, named.until)


def _named(connection: Connection, namespace: str, name: str) -> list[Named]:
    """Ranges by name of a load name, aborted ones left out."""
    of, c = t.loads.c, t.ranges.c
    query = (
        select(of.load_key, of.state, t.attempts.c.closed_at, c.since_position, c.until_position, c.taken_at)
        .join(t.attempts, t.attempts.c.id == c.attempt_id)
        .join(t.loads, of.id == t.attempts.c.load_id)
        .outerjoin(t.decisions, t.decisions.c.attempt_id == t.attempts.c.id)
        .where(of.namespace == namespace, of.name == name, c.moves.is_(None), c.until_position.is_not(None))
        .where(or_(t.decisions.c.verdict.is_(None), t.decisions.c.verdict == Verdict.COMMIT.value))
        .order_by(of.id)
    )
    return [
        Named(
            LoadIdentity(namespace, name, row.load_key),
            json.loads(row.since_position),
            json.loads(row.until_position),
            row.taken_at,
            row.closed_at is not None,
            LoadState(row.state),
        )
        for row in connection.execute(query)
    ]
