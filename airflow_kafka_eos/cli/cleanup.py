"""``cleanup``: sweep one load, or all loads of a namespace that no run is left to sweep."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.airflow_options import default_of, in_ms, or_setting
from airflow_kafka_eos.cli.durations import milliseconds, seconds, text_of
from airflow_kafka_eos.cli.target import add_session, known_load, load_of, open_session, say_where
from airflow_kafka_eos.cli.terminal import (
    FOUND,
    add_yes,
    as_table,
    code_of,
    confirm,
    person,
    say,
    say_hidden,
    say_what_would_fail,
    show,
    worst,
)
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import REPAIR_THROWN_AWAY, LoadIdentity, LoadState

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow
    from airflow_kafka_eos.protocol.cleanup.namespace import Leftovers, Swept
    from airflow_kafka_eos.protocol.session import Session


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    cleanup = commands.add_parser(
        "cleanup",
        help="end what runs have left open",
        description="End what runs have left open, and roll decided loads forward. Without NAME and KEY: all loads of "
        "the namespace that have aborted attempts which are not swept, decisions which are not verified, open "
        "transactions of finished attempts, or attempts that count as abandoned (--abandoned-after). With NAME and "
        "KEY: all attempts of that load, also one that a run is working on.",
    )
    cleanup.add_argument("name", nargs="?", help="only the load of this name, and of this KEY")
    cleanup.add_argument("key", nargs="?", help="its load_key")
    cleanup.add_argument(
        "--abandoned-after", type=or_setting("abandoned_after", milliseconds, in_ms), default="", metavar="DURATION",
        help="an undecided attempt counts as abandoned after so long without a sign of life; "
        f"{default_of('abandoned_after')}",
    )  # fmt: skip
    add_quiet(cleanup)
    cleanup.add_argument(
        "--deadline", type=or_setting("sweep_timeout", seconds, timedelta.total_seconds), default="", metavar="SECONDS",
        help=f"how long to try: seconds, or such as 15m; {default_of('sweep_timeout')}",
    )  # fmt: skip
    cleanup.add_argument(
        "--dry-run", action="store_true", help="only show which loads, up to which attempt, and what of them is open"
    )
    add_yes(cleanup)
    add_session(cleanup)
    cleanup.set_defaults(run=_cleanup)


def add_quiet(command: argparse.ArgumentParser) -> None:
    """The argument for zombies: one of them may open a transaction after a sweep."""
    command.add_argument(
        "--quiet", type=or_setting("quiet_period", milliseconds, in_ms), default="", metavar="DURATION",
        help="how long nothing may have been open, where an application never reported or may have run a task twice, "
        f"before cleanup ends; {default_of('quiet_period')}",
    )  # fmt: skip


def _cleanup(arguments: argparse.Namespace) -> int:
    if (arguments.name is None) != (arguments.key is None):
        raise ConfigurationError("cleanup NAME has no KEY", remedy="Name both, or neither for the whole namespace")
    from airflow_kafka_eos.protocol.cleanup.namespace import aborted_in, clean, open_of, why_unknown
    from airflow_kafka_eos.protocol.guards.ownership import CHOSEN_BY

    with open_session(arguments) as session:
        left = _chosen(arguments, session)
        loads = dict(left.loads)
        before = open_of(session, loads) if arguments.dry_run else {}
        states = {load: row.state for load in before if (row := session.ledger.load(load)) is not None}
        swept: list[Swept] = []
        say_where(session)  # before the question: yes to what
        if loads and not arguments.dry_run:
            confirm(arguments, _question(arguments, session, loads))
            # of all loads that were ever swept it would be most of the topics
            named = loads.items() if arguments.name is not None else ()
            swept = clean(
                session,
                loads,
                by=person(),
                quiet_s=arguments.quiet / 1000,
                deadline_s=arguments.deadline,
                partitions={tp for load, up_to in named for tp in aborted_in(session, load, up_to=up_to)},
            )
        elif not arguments.dry_run:
            say_what_would_fail(arguments)
    codes = [code_of(s.error) for s in swept if s.error is not None]
    codes += [FOUND] if left.unknown or left.other_cluster else []
    codes.append(say_hidden(left.hidden))
    if arguments.dry_run:
        shown = [
            _named(load, up_to) | {"state": states.get(load), "open": before[load]} for load, up_to in loads.items()
        ]
    else:
        shown = [_swept(s) for s in swept]
    others = [_of_another_cluster(row) for row in left.other_cluster]
    not_due = [
        asdict(one.load) | {"attempt": one.attempt, "due_at": one.due_at.isoformat(), "open": list(one.open)}
        for one in left.not_due
    ]
    answer = {
        "loads": shown,
        "unknown": list(left.unknown),
        "not_due": not_due,
        "other_cluster": others,
        "hidden": None if left.hidden is None else str(left.hidden),
    }
    if show(arguments, answer, [_counted(row) for row in shown], nothing="nothing to clean up"):
        if any(before.values()):
            print("\nopen now; a sweep ends what is not decided, and commits what is decided:")
            print("\n".join(name for names in before.values() for name in names))
        if not_due:
            transactions = sum(len(one.open) for one in left.not_due)
            print(
                f"\nnot due yet, for a run may be at work ({transactions} transactions open); at due_at a sweep ends "
                "it, unless it has shown life:"
            )
            print(as_table([_counted(row) for row in not_due]))
        if left.unknown:
            print("\nleft alone, open under this ledger's id:")
            print("\n".join(f"{name}: {why_unknown(name)}" for name in left.unknown))
        if others:
            print(f"\nwritten to another Kafka cluster, and not closed; run it with what leads there ({CHOSEN_BY}):")
            print(as_table(others))
    say(_not_looked_at(arguments))
    return worst(codes)


def _not_looked_at(arguments: argparse.Namespace) -> str:
    """Behind "clean": what coordinators do not list is asked of the leaders of a few partitions only."""
    where = "no partition was asked"
    if not arguments.dry_run:
        where = "asked were only the partitions where something was aborted"
        if arguments.name is not None:
            where += ", now or by what the ledger has of this load"
    return (
        f"of what hangs, open in a partition and listed by no coordinator, {where}: `airflow-kafka-eos transactions "
        f"hanging --running-longer-than 0s --namespace {shlex.quote(arguments.namespace)}` looks at the topics that "
        "loads were prepared for; name others by --topic"
    )


def _chosen(arguments: argparse.Namespace, session: Session) -> Leftovers:
    from airflow_kafka_eos.protocol.cleanup.namespace import Leftovers, find

    if arguments.name is None:
        return find(session, abandoned_after=timedelta(milliseconds=arguments.abandoned_after))
    row = known_load(session.ledger, load_of(arguments))
    return Leftovers({row.load: row.newest_attempt}, ())  # its sweep makes sure itself


def _question(arguments: argparse.Namespace, session: Session, loads: dict[LoadIdentity, int]) -> str:
    if arguments.name is None:
        return (
            f"Sweep {len(loads)} loads of namespace {arguments.namespace}, with undecided attempts older than "
            f"{text_of(arguments.abandoned_after)}?"
        )
    ((load, number),) = loads.items()
    newest = session.ledger.attempt(load, number)
    alive = newest is not None and newest.is_undecided
    warning = " It is undecided, and a run may be working on it. It cannot be committed afterwards." if alive else ""
    if session.ledger.state(load) is LoadState.REPAIRING:
        warning = f" {REPAIR_THROWN_AWAY}."
    return f"Sweep load {load} up to attempt {number}?{warning}"


def _of_another_cluster(row: AttemptRow) -> dict[str, Any]:
    return asdict(row.load) | {"attempt": row.number, "cluster_id": row.cluster_id}


def _named(load: LoadIdentity, up_to: int) -> dict[str, Any]:
    return asdict(load) | {"up_to_attempt": up_to}


def _swept(swept: Swept) -> dict[str, Any]:
    error = None if swept.error is None else str(swept.error)
    return _named(swept.load, swept.up_to) | {"aborted": list(swept.aborted), "clean": error is None, "error": error}


def _counted(row: dict[str, Any]) -> dict[str, Any]:
    """For a table."""
    return {name: len(value) if isinstance(value, list) else value for name, value in row.items()}
