"""Airflow's own command line, in one process: migrate, parse, and run a DAG once for each date that is given."""

from __future__ import annotations

import sys

from airflow.cli.cli_parser import get_parser

if __name__ == "__main__":
    commands = [["db", "migrate"], ["dags", "reserialize"]]
    for command in [*commands, *(["dags", "test", "telling", date] for date in sys.argv[1:])]:
        arguments = get_parser().parse_args(command)
        arguments.func(arguments)
