"""The command line: ``airflow-kafka-eos``. Each command's file adds its own arguments and runs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from airflow_kafka_eos import __version__
from airflow_kafka_eos.cli import cleanup, demo, doctor, ids, ledger, loads, spark_archive, transactions
from airflow_kafka_eos.cli.exits import EXPLAINED, code_of
from airflow_kafka_eos.cli.logs import to_stderr
from airflow_kafka_eos.errors import KafkaEosError

PROG = "airflow-kafka-eos"


def main(argv: Sequence[str] | None = None, *, prog: str = PROG) -> int:
    """Entry point; prints errors of ours as one line and returns the exit code (see :mod:`.exits`).

    :param prog: what the program is called in its help.
    """
    try:
        to_stderr()
        arguments = parser(prog).parse_args(argv)
        return int(arguments.run(arguments))
    except KafkaEosError as e:
        # a driver's message or the tail of a broker's log may have several lines
        lines = [line.strip() for line in f"{type(e).__name__}: {e}".splitlines()]
        print("airflow-kafka-eos:", " | ".join(filter(None, lines)), file=sys.stderr)
        return code_of(e)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """All commands."""
    every = argparse.ArgumentParser(
        prog=prog, description="Spark to Kafka, exactly once, from Airflow.", epilog=EXPLAINED
    )
    every.add_argument("--version", action="version", version=__version__)
    commands = every.add_subparsers(required=True, metavar="COMMAND")
    for group in (loads, transactions, cleanup, ids, ledger, doctor, spark_archive, demo):
        group.add_to(commands)
    return every
