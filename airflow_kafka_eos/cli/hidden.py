"""Saying that a listing was limited by ACLs: what is shown stands, and the exit code is that of a missing right."""

from __future__ import annotations

import sys

from airflow_kafka_eos.cli.exits import OK, code_of
from airflow_kafka_eos.errors import AccessError


def say_hidden(hidden: AccessError | None) -> int:
    """One line for people beside the output, on stderr; the exit code that follows."""
    if hidden is None:
        return OK
    print(f"airflow-kafka-eos: THIS MAY NOT BE ALL: {hidden}", file=sys.stderr)
    return code_of(hidden)
