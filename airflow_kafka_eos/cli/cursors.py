"""``cursors``: where the next range of each load name begins; and a person who says so (docs/cursors.md)."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos import position
from airflow_kafka_eos.cli.durations import whole
from airflow_kafka_eos.cli.ledger import add_conn_id, open_ledger, say_which
from airflow_kafka_eos.cli.target import add_namespace
from airflow_kafka_eos.cli.terminal import FOUND, OK, add_output, add_yes, confirm, person, say, short, show
from airflow_kafka_eos.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.ledger import Ledger
    from airflow_kafka_eos.ledger.named_ranges import Named
    from airflow_kafka_eos.ledger.rows import CursorRow

_SHOWN = 60
#: Ranges by name that people are shown.
_LISTED = 10
_SET = """\
Say where the next load of a name begins to read. It is set only if the cursor still has the
position and the moves that `cursors show` has shown you; then compare topics and source AGAIN,
for what you have seen is not what is there by now.

What lies between what is loaded and the new position is read by no load; what lies behind it
and is loaded already is read, and visible, twice. A load that is under way is not decided any
more, and takes its range anew. A cursor in doubt is out of it. Of Kafka topics name each
partition: those that --new leaves out at the end are read from their first records on (if these
are deleted, it is an error), a topic from its oldest.

What runs have named ahead of the new position is listed before you are asked. A load that comes
to it is refused, as before; with --over-named it reads over it, and what was named until now is
there twice.

--new is for a load name that has none: behind `ledger new-id`, or in the ledger of a new
deployment whose loads go on where those of another one ended. Without it, the first load makes
the cursor, at the first_since of its DAG."""


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    group = commands.add_parser("cursors", help="where the next range of each load name begins")
    cursors = group.add_subparsers(required=True, metavar="COMMAND")

    every = cursors.add_parser("list", help="all cursors")
    every.add_argument("--namespace", help="only this namespace")
    every.set_defaults(run=_list)

    one = cursors.add_parser("show", help="one cursor, and how to set it")
    one.set_defaults(run=_show)

    set_ = cursors.add_parser(
        "set",
        help="say where the next load begins to read",
        description=_SET,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    set_.add_argument("--expect", metavar="POSITION", help="its position as `cursors show` has it")
    set_.add_argument(
        "--moves", type=whole(0, 2**31 - 1), metavar="N", help="its moves as `cursors show` has them"
    )
    set_.add_argument("--new", action="store_true", help="instead of both: there is none, make it")
    set_.add_argument(
        "--to",
        required=True,
        metavar="POSITION",
        help="the new one: a whole number, an ISO time, or JSON; null, where the source begins, with --new, or where "
        "it is null already",
    )
    set_.add_argument(
        "--over-named",
        action="store_true",
        help="loads read over what runs have named ahead of it until now, on purpose: that is there twice then",
    )
    set_.add_argument("--reason", required=True, help="why; it is kept in the ledger")
    add_yes(set_)
    set_.set_defaults(run=_set)

    for command in (one, set_):
        command.add_argument("name", help="the load's name")
        add_namespace(command)
    for command in (every, one, set_):
        add_conn_id(command)
        add_output(command)


def _list(arguments: argparse.Namespace) -> int:
    with open_ledger(arguments) as ledger:
        rows = ledger.cursors(arguments.namespace)
        say_which(ledger)
    found = [_cursor(row) for row in rows]
    shown = [
        {name: row[name] for name in ("namespace", "name")}
        | {"position": _short(row["position"]), "held_by": row["held_by"], "in_doubt": _short(row["doubt"] or "")}
        for row in found
    ]
    show(arguments, found, shown, nothing="no cursors")
    return FOUND if any(row.doubt for row in rows) else OK


def _show(arguments: argparse.Namespace) -> int:
    with open_ledger(arguments) as ledger:
        row = _known(ledger, arguments)
        ahead = ledger.named_ahead(row.namespace, row.load_name, row.position)
        say_which(ledger)
    if show(arguments, _cursor(row) | {"named_ahead": _named(ahead, row.said_at)}, _cursor(row)):
        if ahead:
            print("\n" + _told(ahead, row.said_at, "the cursor"))
        at = shlex.quote(position.dump(row.position))
        where = "".join(
            f" --{name} {shlex.quote(value)}"
            for name, value in (("namespace", arguments.namespace), ("conn-id", arguments.conn_id))
            if value is not None
        )
        print(
            f"\nto set it: airflow-kafka-eos cursors set {shlex.quote(row.load_name)}{where} --expect {at} "
            f"--moves {row.moves} --to … --reason …"
        )
    return FOUND if row.doubt else OK


def _set(arguments: argparse.Namespace) -> int:
    with open_ledger(arguments) as ledger:
        row = _made(ledger, arguments)
        ahead = ledger.named_ahead(row.namespace, row.load_name, row.position)
    show(arguments, _cursor(row) | {"named_ahead": _named(ahead, row.said_at)}, _cursor(row))
    return OK


def _made(ledger: Ledger, arguments: argparse.Namespace) -> CursorRow:
    seen = (arguments.expect, arguments.moves)
    if seen.count(None) != (2 if arguments.new else 0):
        raise ConfigurationError(
            "a cursor is set by the position and the moves that were seen, or made where there is none",
            remedy="Give --expect and --moves, as `cursors show` prints them; or --new, and neither",
        )
    expected = None if arguments.new else _read(arguments.expect, "--expect", nullable=True)
    to = _read(arguments.to, "--to", nullable=expected is None)
    row = None if arguments.new else _known(ledger, arguments)
    what = "Make" if row is None else "Set"
    at = "" if row is None else f" from {_short(position.dump(row.position))}"
    whose = f"{arguments.name} in namespace {arguments.namespace}"
    if ahead := ledger.named_ahead(arguments.namespace, arguments.name, to):
        said_at = None if row is None else row.said_at
        say(_told(ahead, said_at, "the new position", over_named=arguments.over_named))
    confirm(arguments, f"{what} the cursor of {whose}{at} to {_short(position.dump(to))}?")
    return ledger.set_cursor(
        arguments.namespace,
        arguments.name,
        expected=expected,
        moves=arguments.moves,
        to=to,
        by=person(),
        reason=arguments.reason,
        over_named=arguments.over_named,
    )


def _read(text: str, what: str, *, nullable: bool) -> Any:
    return None if nullable and text.strip() == "null" else position.read(text, what)


def _known(ledger: Ledger, arguments: argparse.Namespace) -> CursorRow:
    row = ledger.cursor(arguments.namespace, arguments.name)
    if row is not None:
        return row
    near = nearest(arguments.name, [other.load_name for other in ledger.cursors(arguments.namespace)])
    raise ConfigurationError(
        f"there is no cursor of {arguments.name!r} in namespace {arguments.namespace!r}",
        remedy=f"Did you mean {near}" if near else "`airflow-kafka-eos cursors list` has those that there are",
    )


def _cursor(row: CursorRow) -> dict[str, Any]:
    return {
        "namespace": row.namespace,
        "name": row.load_name,
        "position": position.dump(row.position),
        "moves": row.moves,
        "doubt": row.doubt,
        "held_by": row.holder.key if row.holder is not None and row.is_held else None,
        "holder_state": row.holder_state if row.is_held else None,
        "data_interval_start": row.data_interval_start,
        "moved_at": row.moved_at,
        "moved_by": row.moved_by,
        "reason": row.reason,
    }


def _named(ahead: list[Named], said_at: str | None) -> list[dict[str, Any]]:
    return [
        {
            "key": one.load.key,
            "state": one.state,
            "since": position.dump(one.since),
            "until": position.dump(one.until),
            "read_over": one.is_read_over(said_at),
        }
        for one in ahead
    ]


def _told(ahead: list[Named], said_at: str | None, what: str, *, over_named: bool = False) -> str:
    """For people.

    :param over_named: it is being said of all of them.
    """
    lines = [f"named by runs ahead of {what}:"]
    for one in ahead[:_LISTED]:
        over = over_named or one.is_read_over(said_at)
        does = "loads read over it: it is there twice then" if over else "loads that come to it are refused"
        since, until = _short(position.dump(one.since)), _short(position.dump(one.until))
        lines.append(f"  from {since} to {until}, load {one.load.key}, {one.state.value}: {does}")
    if len(ahead) > _LISTED:
        lines.append(f"  and {len(ahead) - _LISTED} more")
    return "\n".join(lines)


def _short(text: str) -> str:
    return short(text, _SHOWN)
