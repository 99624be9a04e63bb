"""Durations and numbers as people write and read them: 500ms, 90s, 15m, 2h, 7d. Pure.

Whatever is no number that the rest can live with is refused here: ``nan``, ``inf``, 5,000 digits.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT = re.compile(r"(\d{1,12})(ms|s|m|h|d)", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?", re.ASCII)
_WHOLE = re.compile(r"\d{1,19}", re.ASCII)
#: what clocks take, and what waits take: Kafka's timeouts and the system's are numbers of 31 bits
_MOST_MS, _LONGEST_WAIT_MS = 36_500 * _UNITS["d"], 2**31 - 1


def milliseconds(text: str) -> int:
    """Milliseconds of a duration; for argparse.

    :raises argparse.ArgumentTypeError: no number with a unit, or more than a hundred years.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} is no duration: write a number and a unit, such as 500ms, 90s, 15m, 2h or 7d"
        )
    return _bounded(int(match[1]) * _UNITS[match[2]], text)


def seconds(text: str) -> float:
    """Seconds, as a number or a duration; for argparse.

    :raises argparse.ArgumentTypeError: neither, 0, or more than 24 days.
    """
    if _SECONDS.fullmatch(text):
        ms = float(text) * 1000
    elif _TEXT.fullmatch(text):
        ms = milliseconds(text)
    else:
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} is no time: write seconds, such as 60 or 1.5, or a number and a unit, such as 15m"
        )
    if not ms:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all")
    return _bounded(ms, text, _LONGEST_WAIT_MS) / 1000


def milliseconds_or_duration(text: str) -> int:
    """Milliseconds, as Kafka's own tools take them, or a duration; -1 for none; for argparse.

    :raises argparse.ArgumentTypeError: neither, or more than a hundred years.
    """
    if text == "-1":
        return -1
    return _bounded(int(text), text) if _WHOLE.fullmatch(text) else milliseconds(text)


def whole(least: int, most: int) -> Callable[[str], int]:
    """Whole numbers of a range; for argparse."""

    def number(text: str) -> int:
        value = int(text) if _WHOLE.fullmatch(text) else None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is no whole number from {least} to {most}")
        return value

    return number


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


def _bounded(ms: float, text: str, most: int = _MOST_MS) -> int:
    if ms > most:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is more than {most // _UNITS['d']} days")
    return int(ms)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
