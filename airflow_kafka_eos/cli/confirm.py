"""Commands that end or give up something ask first."""

from __future__ import annotations

import argparse
import sys

from airflow_kafka_eos.errors import ConfigurationError


def add_yes(command: argparse.ArgumentParser) -> None:
    """The argument that answers beforehand."""
    command.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")


def confirm(arguments: argparse.Namespace, question: str) -> None:
    """Go on only if a person at a terminal, or ``--yes``, says so.

    :raises ConfigurationError: nobody can be asked, or the answer was no. Nothing was done.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{question} There is no terminal to ask at, so nothing was done", remedy="Add --yes if you are sure"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigurationError("Not confirmed, so nothing was done", remedy="Answer y, or add --yes")
