"""``demo``: real flights through a real broker, Spark and Airflow, with mishaps on the way."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from airflow_kafka_eos.cli.durations import whole


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    demo = commands.add_parser("demo", help="load real flights through mishaps, and count them")
    demo.add_argument(
        "--days", type=whole(5, 365), default=5, help="days of 2013 to load; two meet a mishap (default 5, the least)"
    )
    demo.add_argument(
        "--keep-running",
        action="store_true",
        help="leave the broker and Airflow with its UI up afterwards, until Ctrl-C",
    )
    demo.add_argument(
        "--folder", type=Path, default=Path(".demo"), help="where it all happens; emptied first"
    )
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from airflow_kafka_eos.sandbox.demo.main import main as run

    return run(arguments.folder, days=arguments.days, keep_running=arguments.keep_running)
