"""Durations and sizes as people say them, in logs. Pure."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """``3.2 s``, ``48 s``, ``4 min 12 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def size_text(count: int) -> str:
    """Bytes, of a thousand each: ``3.2 kB``, ``240 MB``."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 999.5 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:,.0f} {unit}" if unit == "bytes" or amount >= 10 else f"{amount:,.1f} {unit}"
