"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def add_output(command: argparse.ArgumentParser) -> None:
    """The argument that says for whom."""
    command.add_argument("--output", choices=("table", "json"), default="table", help="for people, or for programs")


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first row's keys are the head. What is not known is a dash."""
    from tabulate import tabulate  # for people only

    if not rows:
        return ""
    shown = [{key.replace("_", " "): "-" if v in (None, "") else v for key, v in row.items()} for row in rows]
    return str(tabulate(shown, headers="keys", tablefmt="simple", disable_numparse=True))


def as_lines(document: Mapping[str, Any]) -> str:
    """One thing, a line for each field; what is not known is left out."""
    return "\n".join(f"{key.replace('_', ' '):16} {value}" for key, value in document.items() if value)


def utc(ms: int) -> str:
    """Milliseconds since the epoch as text; as they are where no calendar has them."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def as_json(document: Any) -> str:
    """As it is; times are UTC ISO texts."""
    return json.dumps(document, indent=2, ensure_ascii=False)
