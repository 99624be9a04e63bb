"""Durations as people write and read them: 500ms, 90s, 15m, 2h, 7d. Pure."""

from __future__ import annotations

import argparse
import re

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"(\d{1,12})(ms|s|m|h|d)", re.ASCII)


def milliseconds(text: str) -> int:
    """Milliseconds of a duration; for argparse.

    :raises argparse.ArgumentTypeError: no number with a unit.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no duration: write a number and a unit, such as 500ms, 90s, 15m, 2h or 7d"
        )
    return int(match[1]) * _UNITS[match[2]]


def text_of(ms: int) -> str:
    """At most two units, rounded down: 1h5m, 2d3h, 90 s as 1m30s."""
    if ms < 0:
        return f"-{text_of(-ms)}"
    if ms < 1000:
        return f"{ms}ms"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, ms = divmod(ms, _UNITS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)
