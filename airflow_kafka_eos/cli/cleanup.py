"""``cleanup``: sweep one load, or all loads of a namespace that no run is left to sweep."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.airflow_options import default_of, in_ms, or_setting
from airflow_kafka_eos.cli.cluster import add_cluster, add_namespace, open_session, person, say_where
from airflow_kafka_eos.cli.durations import milliseconds, seconds, text_of
from airflow_kafka_eos.cli.terminal import (
    FOUND,
    add_output,
    add_yes,
    as_json,
    as_table,
    code_of,
    confirm,
    say_hidden,
    worst,
)
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import LoadIdentity

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
        "the namespace with aborted attempts that nobody has swept, with decisions that are not verified, with open "
        "transactions of finished attempts, and with attempts abandoned since --abandoned-after. With them: all "
        "attempts of that load, also one that a run is working on.",
    )
    cleanup.add_argument("name", nargs="?", help="only this load's")
    cleanup.add_argument("key", nargs="?", help="its load_key")
    add_namespace(cleanup)
    cleanup.add_argument(
        "--abandoned-after", type=or_setting("abandoned_after", milliseconds, in_ms), default="", metavar="DURATION",
        help="an undecided attempt without a sign of life for so long is nobody's any more; "
        f"{default_of('abandoned_after')} s",
    )  # fmt: skip
    add_quiet(cleanup)
    cleanup.add_argument(
        "--deadline", type=or_setting("sweep_timeout", seconds, timedelta.total_seconds), default="", metavar="SECONDS",
        help=f"how long to try; {default_of('sweep_timeout')}",
    )  # fmt: skip
    cleanup.add_argument(
        "--dry-run", action="store_true", help="only say which loads, up to which attempt, and what of them is open"
    )
    add_yes(cleanup)
    add_cluster(cleanup)
    add_output(cleanup)
    cleanup.set_defaults(run=_cleanup)


def add_quiet(command: argparse.ArgumentParser) -> None:
    """The argument for zombies: one of an application that never reported may open a transaction after a sweep."""
    command.add_argument(
        "--quiet", type=or_setting("quiet_period", milliseconds, in_ms), default="", metavar="DURATION",
        help="how long nothing may have been open after an application that never reported; "
        f"{default_of('quiet_period')} s",
    )  # fmt: skip


def _cleanup(arguments: argparse.Namespace) -> int:
    if (arguments.name is None) != (arguments.key is None):
        raise ConfigurationError("cleanup NAME has no KEY", remedy="Name both, or neither for the whole namespace")
    from airflow_kafka_eos.protocol.cleanup.namespace import clean, open_of

    with open_session(arguments) as session:
        left = _chosen(arguments, session)
        loads = dict(left.loads)
        before = open_of(session, loads) if arguments.dry_run else {}
        states = {load: row.state.value for load in before if (row := session.ledger.load(load)) is not None}
        swept: list[Swept] = []
        if loads and not arguments.dry_run:
            confirm(arguments, _question(arguments, session, loads))
            swept = clean(
                session, loads, by=person(), quiet_s=arguments.quiet / 1000, deadline_s=arguments.deadline
            )
        say_where(session)
    codes = [code_of(s.error) for s in swept if s.error is not None]
    codes += [FOUND] if left.unknown or left.elsewhere else []
    codes.append(say_hidden(left.hidden))
    if arguments.dry_run:
        shown = [_found(load, up_to, states.get(load), before[load]) for load, up_to in loads.items()]
    else:
        shown = [_swept(s) for s in swept]
    if arguments.output == "json":
        why = None if left.hidden is None else str(left.hidden)
        elsewhere = [_of_another_cluster(row) for row in left.elsewhere]
        print(as_json({"loads": shown, "unknown": list(left.unknown), "elsewhere": elsewhere, "hidden": why}))
    else:
        print(as_table([_counted(row) for row in shown]) or "nothing to clean up")
        if any(before.values()):
            print("\nopen now; a sweep ends what is not decided, and commits what is decided:")
            print("\n".join(name for names in before.values() for name in names))
        if left.unknown:
            print("\nopen, of this ledger, and unknown to it (restored from a backup?); left alone:")
            print("\n".join(left.unknown))
        if left.elsewhere:
            print("\nwritten to another Kafka cluster, and not closed; run it with a --kafka-conn-id that leads there:")
            print(as_table([_of_another_cluster(row) for row in left.elsewhere]))
    return worst(codes)


def _chosen(arguments: argparse.Namespace, session: Session) -> Leftovers:
    from airflow_kafka_eos.protocol.cleanup.namespace import Leftovers, find

    if arguments.name is None:
        return find(session, abandoned_after=timedelta(milliseconds=arguments.abandoned_after))
    from airflow_kafka_eos.cli.loads import unknown

    load = LoadIdentity(arguments.namespace, arguments.name, arguments.key)
    row = session.ledger.load(load)
    if row is None:
        raise unknown(session.ledger, load)
    return Leftovers({load: row.newest_attempt}, ())  # its sweep makes sure itself


def _question(arguments: argparse.Namespace, session: Session, loads: dict[LoadIdentity, int]) -> str:
    if arguments.name is None:
        return (
            f"Sweep {len(loads)} loads of namespace {arguments.namespace}, with undecided attempts older than "
            f"{text_of(arguments.abandoned_after)}?"
        )
    ((load, number),) = loads.items()
    newest = session.ledger.attempt(load, number)
    alive = newest is not None and newest.is_undecided
    warning = " It is undecided, a run may be at work on it, and it cannot be committed then." if alive else ""
    return f"Sweep load {load} up to attempt {number}?{warning}"


def _of_another_cluster(row: AttemptRow) -> dict[str, Any]:
    load = row.load
    return {
        "namespace": load.namespace,
        "name": load.name,
        "key": load.key,
        "attempt": row.number,
        "cluster_id": row.cluster_id,
    }


def _named(load: LoadIdentity, up_to: int) -> dict[str, Any]:
    return {"namespace": load.namespace, "name": load.name, "key": load.key, "up_to_attempt": up_to}


def _found(load: LoadIdentity, up_to: int, state: str | None, open_ids: list[str]) -> dict[str, Any]:
    return {**_named(load, up_to), "state": state, "open": open_ids}


def _swept(swept: Swept) -> dict[str, Any]:
    error = None if swept.error is None else str(swept.error)
    return {
        **_named(swept.load, swept.up_to), "aborted": list(swept.aborted), "clean": error is None, "error": error
    }  # fmt: skip


def _counted(row: dict[str, Any]) -> dict[str, Any]:
    """For a table."""
    return {name: len(value) if isinstance(value, list) else value for name, value in row.items()}
