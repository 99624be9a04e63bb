"""``loads recover`` and ``loads give-up``: what a person can do for a load that is decided and not committed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos.cli.cluster import add_cluster, open_session, person
from airflow_kafka_eos.cli.confirm import add_yes, confirm
from airflow_kafka_eos.cli.durations import seconds
from airflow_kafka_eos.cli.exits import FOUND, OK
from airflow_kafka_eos.cli.output import add_output, as_json, as_lines
from airflow_kafka_eos.load import LoadIdentity, LoadState

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import LoadRow
    from airflow_kafka_eos.protocol.session import Session


def add_to(loads: Any) -> None:
    """Add the commands to those of ``loads``."""
    from airflow_kafka_eos.cli.loads import add_load

    recover = loads.add_parser(
        "recover", help="roll a decided load forward, or repair it, until it is committed or in doubt"
    )
    recover.add_argument(
        "--deadline", type=seconds, default=300.0, metavar="SECONDS", help="how long to try; default 300"
    )
    recover.set_defaults(run=_recover)
    give_up = loads.add_parser(
        "give-up",
        help="say that a decided load will never be completed",
        description="Say that a decided load will never be completed. Readers keep what is committed of it; what is "
        "not may be ended then, by `transactions force-terminate`. There is no way back.",
    )
    give_up.add_argument("--reason", required=True, help="why, for whoever looks at the ledger later")
    add_yes(give_up)
    give_up.set_defaults(run=_give_up)
    for command in (recover, give_up):
        add_load(command)
        add_cluster(command)
        add_output(command)


def _recover(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.recovering import recover

    load = _identity(arguments)
    with open_session(arguments) as session:
        _refuse_unknown(session, load)
        row = recover(session, load, by=person(), deadline_s=arguments.deadline)
        return _print(arguments, session, row)


def _give_up(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.protocol.recovering import give_up

    load = _identity(arguments)
    with open_session(arguments) as session:
        _refuse_unknown(session, load)
        confirm(arguments, f"Give up load {load} for good? It is decided to be committed.")
        give_up(session, load, by=person(), reason=arguments.reason)
        row = session.ledger.load(load)
        assert row is not None
        _print(arguments, session, row)
    return OK


def _identity(arguments: argparse.Namespace) -> LoadIdentity:
    return LoadIdentity(arguments.namespace, arguments.name, arguments.key)


def _refuse_unknown(session: Session, load: LoadIdentity) -> None:
    from airflow_kafka_eos.cli.loads import unknown

    if session.ledger.load(load) is None:
        raise unknown(session.ledger, load)


def _print(arguments: argparse.Namespace, session: Session, row: LoadRow) -> int:
    from airflow_kafka_eos.cli.loads import as_row

    shown = as_row(row, session.ledger.attempt(row.load, row.newest_attempt))
    print(as_json(shown) if arguments.output == "json" else as_lines(shown))
    return OK if row.state is LoadState.COMMITTED else FOUND
