"""The table of docs/compatibility.md, from cells.toml: ``python -m tests.matrix.table`` writes it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- from tests/matrix/cells.toml: python -m tests.matrix.table -->\n", "<!-- to here -->\n"
COLUMNS = ("python", "airflow", "spark", "kafka", "sqlalchemy")
_TITLES = ("cell", "Python", "Airflow", "Spark", "Kafka", "SQLAlchemy")


def table() -> dict[str, Any]:
    """cells.toml."""
    return tomllib.loads((Path(__file__).parent / "cells.toml").read_text(encoding="utf-8"))


def rows() -> str:
    """In Markdown, each row with what differs from the newest."""
    found = table()
    every = found["cells"] | {"everything else": found["newest"]}
    lines = [_TITLES, ("---",) * len(_TITLES)]
    lines += [(name, *(cell.get(column, "") for column in COLUMNS)) for name, cell in every.items()]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |").replace("|  |", "| |") for line in lines)


def parts() -> tuple[str, str, str]:
    """The page before the table, the table, and what is behind it."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    found, _, behind = rest.partition(END)
    return before, found, behind


if __name__ == "__main__":
    before, _, behind = parts()
    PAGE.write_text(before + BEGIN + rows() + END + behind, encoding="utf-8")
