"""Cursors: where the next range of a load name begins, and how that moves.

Rules: cursor-moves-with-the-decision, one-load-per-cursor, cursor-in-doubt-stops.

Each function is a part of one database transaction. The load's row is locked before the cursor's, never the other way
round; the row of the load that holds a cursor is only read.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update

from airflow_kafka_eos import position
from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, NotFinishedError, UndecidableError
from airflow_kafka_eos.ledger import tables as t
from airflow_kafka_eos.ledger.database import insert_first
from airflow_kafka_eos.ledger.queries import Locked, now, slices
from airflow_kafka_eos.ledger.rows import AttemptRow, CursorRow, RangeRow, read_row
from airflow_kafka_eos.ledger.tables import for_people, for_reason
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict, name_in_command

#: Values in one IN (...): databases have a limit.
_AT_ONCE = 500
_LOOK = (
    "Compare topics and source: where does what is loaded end? Set the cursor there, by `airflow-kafka-eos cursors "
    "show` and `cursors set`; then clear begin"
)


def check(
    connection: Connection, load: LoadIdentity, interval_start: str | None = None, *, named: bool = False
) -> None:
    """Whether a range may be taken for the load, as things are; nothing is written, and nothing locked.

    Parameters and errors are those of :func:`check_row`, and of :func:`locked_cursor`.
    """
    found = cursor_row(connection, load.namespace, load.name)
    if found is None:
        _check_may_begin(connection, load)
    else:
        check_row(found, load, interval_start, named=named)


def why_not_advance(connection: Connection, load: LoadIdentity, number: int) -> str:
    """Why the attempt's range cannot be decided as things are; an empty text where it can, or it has none."""
    row = range_row(connection, load, number)
    if row is None:
        return ""
    cursor = cursor_row(connection, load.namespace, load.name)
    return _why_not(row, cursor) or _why_empty(row, _records(connection, load, number))


def advance(connection: Connection, locked: Locked, attempt: AttemptRow, by: str) -> None:
    """Move the cursor to the end of the attempt's range, beside its decision to commit; nothing for one without.

    Rule: cursor-moves-with-the-decision.

    :raises UndecidableError: the cursor has moved since the range was taken, or is in doubt.
    """
    load = locked.row.load
    row = range_row(connection, load, attempt.number)
    if row is None:
        return
    cursor = _cursor(connection, load.namespace, load.name, lock=True)
    problem = _why_not(row, cursor) or _why_empty(row, attempt.records)
    if problem:
        raise no_range(load, attempt.number, problem)
    if row.is_named:
        return
    assert cursor is not None
    interval = locked.row.data_interval
    change(
        connection,
        load,
        position=position.dump(row.until),
        moves=cursor.moves + 1,
        data_interval_start=cursor.data_interval_start if interval is None else interval[0],
        moved_at=now(),
        moved_by=for_people(by),
        reason=for_reason(f"load {load.key}"),
    )


def note_over(connection: Connection, locked: Locked) -> None:
    """Its load is COMMITTED, or was given up and nothing of it is open any more.

    Who has looked at topics before, and would set the cursor, has to look again.
    """
    cursor = _held_by(connection, locked)
    if cursor is not None:
        change(connection, locked.row.load, moves=cursor.moves + 1)


def give_up(connection: Connection, locked: Locked, by: str) -> None:
    """Its load is given up behind the decision: the cursor goes back to where the range began, and is in doubt.

    Part of the range may be visible: to read it again would double that, to go on would leave the rest out.
    """
    committed = locked.committed
    cursor = _held_by(connection, locked)
    row = None if committed is None else range_row(connection, locked.row.load, committed.number)
    if cursor is None or row is None or row.is_named:
        return
    load = locked.row.load
    doubt = (
        f"load {load.key} was given up by {by}: of its range, from {position.dump(row.since)} to "
        f"{position.dump(row.until)}, a part may be visible"
    )
    change(
        connection,
        load,
        position=position.dump(row.since),
        moves=cursor.moves + 1,
        doubt=for_reason(doubt),
        moved_at=now(),
        moved_by=for_people(by),
        reason=for_reason(f"load {load.key} was given up"),
    )


def doubt_all(connection: Connection, why: str) -> int:
    """Put every cursor in doubt (rule: cursor-in-doubt-stops); how many."""
    c = t.cursors.c
    doubt = {"doubt": for_reason(why), "moves": c.moves + 1}
    return connection.execute(update(t.cursors).values(doubt)).rowcount


def set_position(
    connection: Connection,
    namespace: str,
    name: str,
    *,
    expected: Any,
    moves: int | None,
    to: Any,
    by: str,
    reason: str,
    over_named: bool = False,
) -> CursorRow:
    """A person says where the next range begins. Takes it out of doubt.

    Said again, with the same words, it is the same: the answer to COMMIT may have been lost.

    What was named ahead of it stays refused to own loads: who sets a cursor, for whatever reason, need not know of it.

    :param expected: the position that the person saw; None: where the source begins.
    :param moves: the count that the person saw; None: there was none, and one is made.
    :param over_named: own loads may read over what was named until now.
    :raises ConfigurationError: there is no such cursor, it has moved since, or ``to`` is of another kind or leaves out
        partitions of a topic.
    :raises NotFinishedError: a load is decided that has moved it, and is not verified: it may be given up yet. Or it
        was given up, and what it has open may become visible yet.
    """
    made = moves is None and _insert(connection, namespace, name, to)
    cursor = _cursor(connection, namespace, name, lock=True)
    if cursor is None:
        raise ConfigurationError(
            f"there is no cursor of {name!r} in namespace {namespace!r}",
            remedy="`airflow-kafka-eos cursors list` has those that there are; the first load makes one, or you do: "
            "`cursors set --new`",
        )
    said = (position.dump(to), for_people(by), for_reason(reason))
    if (
        not made
        and (position.dump(cursor.position), cursor.moved_by, cursor.reason) == said
        and cursor.moves == (moves or 0) + 1
        and over_named == (cursor.said_at is not None and cursor.said_at == cursor.moved_at)
        and cursor.doubt is None
    ):
        return cursor
    if moves is None and not made:
        raise ConfigurationError(
            f"there is a cursor of {name!r} in namespace {namespace!r}, at {position.dump(cursor.position)}",
            remedy="Nothing was set. `airflow-kafka-eos cursors show` says how to set one that is there",
        )
    if not made and (position.dump(cursor.position), cursor.moves) != (position.dump(expected), moves):
        raise ConfigurationError(
            f"the cursor is at {position.dump(cursor.position)} after {cursor.moves} moves, not at "
            f"{position.dump(expected)} after {moves}: it has moved since it was looked at",
            remedy="Nothing was set. Look again: `airflow-kafka-eos cursors show`",
        )
    state = cursor.holder_state
    if state is not None and state.is_unverified:
        raise NotFinishedError(
            f"load {cursor.holder} has moved the cursor, and is {state.value}: how much of it is visible is not known",
            remedy=f"{how_to_end(cursor.holder, cursor.holder_state)}. Then look again",
            load=str(cursor.holder),
        )
    if state is LoadState.GIVEN_UP and _may_become_visible(connection, namespace, name):
        assert cursor.holder is not None  # whose state it is
        raise NotFinishedError(
            f"load {cursor.holder} was given up, and nobody has seen that nothing of it is open: what is not visible "
            "yet may become so, behind a position that rests on what is",
            remedy=f"Run `airflow-kafka-eos cleanup {cursor.holder.in_command}`: it names what is open, `transactions "
            "force-terminate` ends that, and the next cleanup closes the load. Then compare topics and source again",
            load=str(cursor.holder),
        )
    if cursor.position is not None and to is not None:
        position.is_same(cursor.position, to, "the cursor")  # of one kind
        if missing := position.left_out(to, cursor.position):
            raise ConfigurationError(
                f"the new position does not name partitions {', '.join(missing[:5])}{', …' if missing[5:] else ''}, "
                f"which the cursor has: they would be read from their oldest record on",
                remedy="Nothing was set. Name each partition of the topic, those that go on where they are as well: "
                "`airflow-kafka-eos cursors show` has them. Was the topic made anew? Then name its new id in topic_ids "
                "(has the cursor none? Set it first to where it is, with any text as the id in topic_ids)",
            )
    position.check_no_gaps(to, "the new position")
    moment = now()
    values = {
        "position": position.dump(to),
        "moves": cursor.moves + 1,
        "load_id": None,
        "data_interval_start": None,
        "doubt": None,
        "moved_at": moment,
        "moved_by": said[1],
        "reason": said[2],
    }
    if over_named:
        values["said_at"] = moment
    connection.execute(update(t.cursors).where(_is(namespace, name)).values(values))
    found = cursor_row(connection, namespace, name)
    assert found is not None
    return found


def cursor_row(connection: Connection, namespace: str, name: str) -> CursorRow | None:
    """None: no load of the name has taken a range."""
    return _cursor(connection, namespace, name, lock=False)


def cursor_rows(connection: Connection, namespace: str | None = None) -> list[CursorRow]:
    """By namespace and load name."""
    query = _cursors().order_by(t.cursors.c.namespace, t.cursors.c.load_name)
    if namespace is not None:
        query = query.where(t.cursors.c.namespace == namespace)
    return [_cursor_row(row) for row in connection.execute(query)]


def range_row(connection: Connection, load: LoadIdentity, number: int) -> RangeRow | None:
    """What an attempt reads; None for one that has taken no range."""
    return next((one for one in ranges_of(connection, load) if one.attempt == number), None)


def decided_keys(connection: Connection, namespace: str, name: str, keys: Collection[str]) -> set[str]:
    """Those of the keys whose loads, of that name, are decided to be committed."""
    of = t.loads.c
    query = (
        select(of.load_key)
        .join(t.decisions, t.decisions.c.load_id == of.id)
        .where(of.namespace == namespace, of.name == name, t.decisions.c.verdict == Verdict.COMMIT.value)
    )
    found: set[str] = set()
    for some in slices(sorted(keys), _AT_ONCE):
        found |= set(connection.execute(query.where(of.load_key.in_(some))).scalars())
    return found


# -- what may be taken -----------------------------------------------------------------------------------------------


def check_row(cursor: CursorRow, load: LoadIdentity, interval_start: str | None, *, named: bool) -> None:
    """Whether a range may be taken for a load.

    :param interval_start: of the run's data, as the ledger has it; None: the run has none that says anything.
    :param named: somebody names it: it rests on no position, and moves none.
    :raises InDoubtError: the cursor is in doubt, or the load that has its last range is (rule: cursor-in-doubt-stops).
    :raises NotFinishedError: another load has a range of it, and is not through (rule: one-load-per-cursor).
    :raises ConfigurationError: the interval is before that of the load that moved the cursor last.
    """
    if cursor.doubt is not None:
        raise InDoubtError(
            f"the cursor of {cursor.load_name} is in doubt: {cursor.doubt}",
            remedy=f"Nothing is read or written. {_LOOK}",
            load=str(load),
        )
    if named:
        return
    if cursor.is_held and cursor.holder != load:
        state = cursor.holder_state
        assert state is not None
        kind = InDoubtError if state is LoadState.IN_DOUBT else NotFinishedError
        raise kind(
            f"load {cursor.holder} has the cursor's last range, and is {state.value}: the next begins where it ends",
            remedy="Loads of one cursor run one behind the other: retries of prepare wait, and max_active_runs=1 keeps "
            f"runs from having to. {how_to_end(cursor.holder, cursor.holder_state)}",
            load=str(load),
        )
    moved = cursor.data_interval_start
    if interval_start is not None and moved is not None and interval_start < moved:
        raise ConfigurationError(
            f"this run's data interval begins at {interval_start}, that of the load which moved the cursor last at "
            f"{moved}: what this run would read is behind what later runs have read",
            remedy="What belongs to this run was loaded by the runs behind it: mark it as success. To load a range of "
            'the past once more, name it in the run\'s conf: {"cursor_range": {"since": …, "until": …}}',
            load=str(load),
        )


def how_to_end(load: LoadIdentity | None, state: LoadState | None) -> str:
    """What a person does about a load that holds a cursor, or has a range, and is not through.

    Most often a run is at work on it: nobody is told to give up, which is for good, what is not in doubt.
    """
    assert load is not None and state is not None
    if state is LoadState.IN_DOUBT:
        return (
            f"A person has to see to it: `airflow-kafka-eos loads show {load.in_command}` says what is in doubt. Mend "
            "that and run `loads recover`, or give it up by `loads give-up`"
        )
    if state.is_unverified:
        return f"Where no run finishes it, `airflow-kafka-eos loads recover {load.in_command}` does"
    return f"Where no run is at work on it any more, `airflow-kafka-eos cleanup {load.in_command}` aborts it"


def _why_not(row: RangeRow, cursor: CursorRow | None) -> str:
    if row.until is None:
        return "nobody has recorded where its range ends"
    if cursor is None:
        return "its cursor is gone"
    if cursor.doubt is not None:
        return f"its cursor is in doubt: {cursor.doubt}"
    if not row.is_named and row.moves != cursor.moves:
        return (
            f"its cursor has moved since its range was taken, to {position.dump(cursor.position)}, by "
            f"{cursor.moved_by}: {cursor.reason}"
        )
    return ""


def _why_empty(row: RangeRow, records: int | None) -> str:
    if not records or position.is_behind(row.until, row.since, "the range"):
        return ""
    return (
        f"its range is empty, it begins and ends at {position.dump(row.until)}, and it has {records:,} "
        "records: the job reads more than its range"
    )


def no_range(load: LoadIdentity, number: int, problem: str) -> UndecidableError:
    """The error of an attempt whose range cannot be decided."""
    return UndecidableError(
        f"the attempt has no range to be committed with: {problem}",
        remedy="Clear prepare, with what is downstream: it opens a new attempt, which takes a range anew",
        load=str(load),
        attempt=number,
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def _is(namespace: str, name: str) -> Any:
    return (t.cursors.c.namespace == namespace) & (t.cursors.c.load_name == name)


def change(connection: Connection, load: LoadIdentity, **values: Any) -> None:
    """Columns of the cursor of the load's name."""
    connection.execute(update(t.cursors).where(_is(load.namespace, load.name)).values(values))


def locked_cursor(connection: Connection, load: LoadIdentity, first_since: Any) -> CursorRow:
    """The cursor of the load's name, locked until the transaction ends.

    :param first_since: the position of one that is made now.
    :raises InDoubtError: there is none, and the ledger was restored: it may have been there (rule:
        cursor-in-doubt-stops).
    """
    found = _cursor(connection, load.namespace, load.name, lock=True)
    if found is None:
        _check_may_begin(connection, load)
        _insert(connection, load.namespace, load.name, first_since)
        found = _cursor(connection, load.namespace, load.name, lock=True)
    assert found is not None
    return found


def begin_at(connection: Connection, load: LoadIdentity, cursor: CursorRow, first_since: Any) -> CursorRow:
    """The cursor, at what the DAG says by now: until a decision or a person has moved it, that is where it begins."""
    if cursor.moved_at is not None or position.dump(cursor.position) == position.dump(first_since):
        return cursor
    change(connection, load, position=position.dump(first_since), moves=cursor.moves + 1)
    return replace(cursor, position=first_since, moves=cursor.moves + 1)


def _insert(connection: Connection, namespace: str, name: str, at: Any) -> bool:
    """False where there is one."""
    values = {
        "namespace": namespace,
        "load_name": name,
        "position": position.dump(at),
        "moves": 0,
        "created_at": now(),
        "reason": "",
    }
    return insert_first(connection, insert(t.cursors).values(values))


def _check_may_begin(connection: Connection, load: LoadIdentity) -> None:
    changed_at = connection.execute(select(t.ledger.c.id_changed_at)).scalar_one_or_none()
    if changed_at is not None:
        raise InDoubtError(
            f"the ledger has no cursor of {load.name}, and got another id, or a forgotten load back, at {changed_at}: "
            "if it was restored from a backup of before the first load with that cursor, loads that it does not know "
            "have read on since",
            remedy="Nothing is read or written. Compare topics and source: where does what is loaded end? Say so by "
            f"`airflow-kafka-eos cursors set {name_in_command(load)} --new --to … "
            "--reason …`, with `--to null` where nothing is loaded, and the source begins at its beginning; then clear "
            "begin",
            load=str(load),
        )


def _may_become_visible(connection: Connection, namespace: str, name: str) -> bool:
    """Whether the decided attempt of the load that holds a cursor is not closed."""
    of = t.attempts.c
    query = (
        select(of.id)
        .join(t.cursors, t.cursors.c.load_id == of.load_id)
        .join(t.decisions, t.decisions.c.attempt_id == of.id)
        .where(_is(namespace, name), t.decisions.c.verdict == Verdict.COMMIT.value, of.closed_at.is_(None))
    )
    return connection.execute(query).first() is not None


def _records(connection: Connection, load: LoadIdentity, number: int) -> int | None:
    of = t.loads.c
    query = (
        select(t.attempts.c.records)
        .join(t.loads, of.id == t.attempts.c.load_id)
        .where(of.namespace == load.namespace, of.name == load.name, of.load_key == load.key)
        .where(t.attempts.c.number == number)
    )
    return connection.execute(query).scalar_one_or_none()


def _held_by(connection: Connection, locked: Locked) -> CursorRow | None:
    """The load's cursor, locked, where this load has taken its last range."""
    load = locked.row.load
    cursor = _cursor(connection, load.namespace, load.name, lock=True)
    return cursor if cursor is not None and cursor.holder == load else None


def _cursor(connection: Connection, namespace: str, name: str, *, lock: bool) -> CursorRow | None:
    if lock:
        connection.execute(select(t.cursors.c.id).where(_is(namespace, name)).with_for_update())
    found = connection.execute(_cursors().where(_is(namespace, name))).one_or_none()
    if found is None:
        return None
    row = _cursor_row(found)
    if row.load_name != name or row.namespace != namespace:
        # MySQL pads texts with spaces when it compares them
        raise ConfigurationError(
            f"this database cannot tell the cursor of {name!r} from that of {row.load_name!r}",
            remedy="Use names that differ in more than spaces at their end",
        )
    return row


def _cursors() -> Select[Any]:
    of = t.loads.c
    return select(t.cursors, of.name, of.load_key, of.state).outerjoin(t.loads, of.id == t.cursors.c.load_id)


def _cursor_row(row: Any) -> CursorRow:
    held = row.load_id is not None
    return read_row(
        CursorRow,
        row,
        position=json.loads(row.position),
        holder=LoadIdentity(row.namespace, row.name, row.load_key) if held else None,
        holder_state=LoadState(row.state) if held else None,
    )


def ranges_of(connection: Connection, load: LoadIdentity) -> list[RangeRow]:
    """Those of the load's attempts, the oldest first."""
    c, of = t.ranges.c, t.loads.c
    query = (
        select(t.attempts.c.number, c.since_position, c.until_position, c.moves, c.taken_at)
        .join(t.attempts, t.attempts.c.id == c.attempt_id)
        .join(t.loads, of.id == t.attempts.c.load_id)
        .where(of.namespace == load.namespace, of.name == load.name, of.load_key == load.key)
        .order_by(t.attempts.c.number)
    )
    return [
        RangeRow(
            load,
            row.number,
            json.loads(row.since_position),
            None if row.until_position is None else json.loads(row.until_position),
            row.moves,
            row.taken_at,
        )
        for row in connection.execute(query)
    ]
