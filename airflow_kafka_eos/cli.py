"""The command line: ``airflow-kafka-eos``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from airflow_kafka_eos import __version__
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError

LEDGER_VARIABLE = "AIRFLOW_KAFKA_EOS_LEDGER"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; prints errors of ours as one line and returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KafkaEosError as e:
        # a driver's message or the tail of a broker's log may have several lines
        lines = [line.strip() for line in f"{type(e).__name__}: {e}".splitlines()]
        print("airflow-kafka-eos:", " | ".join(filter(None, lines)), file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airflow-kafka-eos", description="Spark to Kafka, exactly once, from Airflow."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    ledger = commands.add_parser("ledger", help="the metadata DB").add_subparsers(
        required=True, metavar="COMMAND"
    )
    upgrade = ledger.add_parser("upgrade", help="create or migrate the ledger's tables")
    show = ledger.add_parser("show", help="list the loads and their states")
    for command in (upgrade, show):
        command.add_argument(
            "--conn-id",
            help=f"Airflow connection of the ledger; default: the URL in ${LEDGER_VARIABLE}, else the SQLite file",
        )
    upgrade.set_defaults(run=_ledger_upgrade)
    show.set_defaults(run=_ledger_show)

    demo = commands.add_parser("demo", help="load real flights through mishaps, and count them")
    demo.add_argument("--days", type=int, default=5, help="days of 2013 to load (default 5)")
    demo.add_argument("--keep-running", action="store_true", help="leave the broker up afterwards")
    demo.add_argument(
        "--folder", type=Path, default=Path(".demo"), help="where it all happens; deleted first"
    )
    demo.add_argument(
        "--dags", type=Path, default=Path(__file__).parents[1] / "dags", help="the project's dags folder"
    )
    demo.set_defaults(run=_demo)
    return parser


def _ledger_url(arguments: argparse.Namespace) -> str:
    from airflow_kafka_eos.ledger.location import default_url

    if arguments.conn_id:
        from airflow.sdk import BaseHook
        from airflow.sdk.exceptions import AirflowNotFoundException

        from airflow_kafka_eos.hooks.kafka_eos import ledger_url

        try:
            connection = BaseHook.get_connection(arguments.conn_id)
        except AirflowNotFoundException as e:
            raise ConfigurationError(
                f"--conn-id {arguments.conn_id!r}: Airflow has no such connection here",
                remedy=f"Name one that `airflow connections list` shows, or set {LEDGER_VARIABLE} to the ledger's URL",
            ) from e
        return ledger_url(connection)
    return os.environ.get(LEDGER_VARIABLE) or default_url()


def _ledger_upgrade(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.ledger.location import redacted
    from airflow_kafka_eos.ledger.migrate import current, upgrade

    url = _ledger_url(arguments)
    before = current(url)
    upgrade(url)
    print(f"ledger {redacted(url)}: {before or 'empty'} -> {current(url)}")
    return 0


def _ledger_show(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.ledger.ledger import Ledger

    with Ledger.open(_ledger_url(arguments)) as ledger:
        for row in ledger.loads():
            print(f"{row.load}  {row.state.value}  attempt {row.newest_attempt}  {row.reason or ''}".rstrip())
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.sandbox.demo.main import main as run

    return run(arguments.folder, arguments.dags, days=arguments.days, keep_running=arguments.keep_running)
