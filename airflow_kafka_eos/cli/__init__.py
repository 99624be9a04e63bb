"""The command line: ``airflow-kafka-eos``. Each command's file adds its own arguments and runs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from airflow_kafka_eos import __version__
from airflow_kafka_eos.cli import demo, doctor, ledger, loads
from airflow_kafka_eos.errors import KafkaEosError


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
    for group in (loads, ledger, doctor, demo):
        group.add_to(commands)
    return parser
