"""``airflow kafka-eos …``: the same commands under Airflow's own. Named by the provider's ``cli`` entry."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def get_kafka_eos_cli_commands() -> list[Any]:
    """One command that hands its words on, so that no other call of ``airflow`` pays for our parser."""
    from airflow.cli.cli_config import ActionCommand, Arg

    words = Arg(  # type: ignore[no-untyped-call]
        ("words",), nargs=argparse.REMAINDER, metavar="COMMAND", help="a command and its arguments"
    )
    return [
        ActionCommand(
            name="kafka-eos",
            help="Loads into Kafka, exactly once: loads, transactions, cleanup, ledger",
            description="The commands of airflow-kafka-eos: `airflow kafka-eos loads list`, `airflow kafka-eos "
            "transactions list`, `airflow kafka-eos cleanup`, ... Each has its own --help.",
            func=_run,
            args=(words,),
        )
    ]


def _run(arguments: argparse.Namespace) -> None:
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    from airflow_kafka_eos.cli import main

    redirect_stdout_log_handlers_to_stderr()  # what programs read must be ours alone
    sys.exit(main(arguments.words, prog="airflow kafka-eos"))
