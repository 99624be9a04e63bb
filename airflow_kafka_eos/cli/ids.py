"""``ids``: how many transactional ids brokers keep for this ledger's loads, and slots that a person must look at."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from airflow_kafka_eos.cli.durations import whole
from airflow_kafka_eos.cli.ledger import add_conn_id
from airflow_kafka_eos.cli.target import add_cluster, add_namespace, add_session, open_session, say_where
from airflow_kafka_eos.cli.terminal import FOUND, OK, add_yes, confirm, say_hidden, show, worst
from airflow_kafka_eos.errors import ConfigurationError


def add_to(commands: Any) -> None:
    """Add the commands to the parser's subcommands."""
    ids = commands.add_parser("ids", help="transactional ids and their slots").add_subparsers(
        required=True, metavar="COMMAND"
    )
    report = ids.add_parser(
        "report", help="how many ids brokers keep, by load name, how old they are and what they cost"
    )
    add_session(report)
    report.set_defaults(run=_report)

    settle = ids.add_parser(
        "settle",
        help="say that a slot in doubt was looked at",
        description="A slot is in doubt when the broker showed something under its ids that the ledger does not know. "
        "No load of that name is submitted until a person has found out what it was, has ended what is open, and says "
        "so by this command, which refuses while something is open. It changes the ledger only: the slot is retired, "
        "its ids are never used, looked at or ended again, and the next load takes another slot. A streaming query of "
        "that name begins no batch until `streams set NAME --decided BATCH` has said which is the last one that its "
        "topics have.",
    )
    settle.add_argument("name", help="the load name")
    settle.add_argument("slot", type=whole(0, 2**31 - 1), help="its number, as the error and `ids report` say")
    add_namespace(settle)
    add_cluster(settle)
    add_conn_id(settle)
    add_yes(settle)
    settle.set_defaults(run=_settle)


def _report(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.guards.id_caps import ids_report

    with open_session(arguments) as session:
        report = ids_report(session)
        say_where(session)
    names = []
    for one in report.names:
        row = asdict(one)
        row["oldest_s"] = None if one.oldest_s is None else round(one.oldest_s)
        names.append({"name": row.pop("load_name"), "ids": one.ids} | row)
    shown = {
        "namespace": report.namespace,
        "expiration_ms": report.expiration_ms,
        "hidden": None if report.hidden is None else str(report.hidden),
        "ids": report.ids,
        "bytes": report.bytes,
        "names": names,
    }
    told = [row | {"slots_in_doubt": ", ".join(map(str, row["slots_in_doubt"]))} for row in names]
    if show(arguments, shown, told, nothing="no ids"):
        kept = "unknown" if report.expiration_ms is None else f"{report.expiration_ms / 86_400_000:g} days"
        cost = f"about {report.bytes / 1024:.0f} KiB of brokers' memory"
        print(f"\n{report.ids} ids, {cost}; an unused id is kept for: {kept}")
    return worst([FOUND if any(n.in_doubt for n in report.names) else OK, say_hidden(report.hidden)])


def _settle(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.guards.slots import check_nothing_open

    with open_session(arguments) as session:
        ledger = session.ledger
        found = ledger.slot(arguments.namespace, arguments.name, arguments.slot)
        if found is None or found.doubt is None:
            raise ConfigurationError(
                f"slot {arguments.slot} of load name {arguments.name!r} is not in doubt",
                remedy="`airflow-kafka-eos ids report` shows which names have one",
            )
        check_nothing_open(session, found)
        confirm(
            arguments,
            f"Slot {arguments.slot} of {arguments.name} showed: {found.doubt}. Nothing is open. Was it looked at?",
        )
        check_nothing_open(session, found)  # now: the answer may have come an hour later
        ledger.settle_slot(arguments.namespace, arguments.name, arguments.slot)
    print(f"slot {arguments.slot} of {arguments.name} is settled, and never used again: the next load takes another")
    return OK
