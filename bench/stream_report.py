"""What the page about streaming queries makes of their figures: :func:`page`. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.report import table

#: Spark's own sink is what the others are measured by.
BASE = "kafka"
#: What none in Python is below.
FLOOR = "empty"
NAMES = {
    BASE: "Spark's own sink, at least once", FLOOR: "a sink in Python that writes nothing",
    "kafka_eos": "`kafka_eos`, exactly once",
    "foreachBatch": "`foreachBatch` with `exactly_once`", "flink": "Flink's KafkaSink, exactly once",
}  # fmt: skip
SINKS = (BASE, "kafka_eos", "foreachBatch")
ALL = (BASE, FLOOR, *SINKS[1:])
#: Of steady operation: what Spark reads.
SOURCES = ("rate", "kafka")


@dataclass
class Steady:
    """Steady operation of one sink: its batches, and how many rows came through in how many seconds, by the log."""

    batches: list[dict[str, float]] = field(default_factory=list)
    rows: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@dataclass
class Figures:
    """Batches by rows and sink, ages by sink, in milliseconds; steady operation by source, its rows a second, and sink.

    Of each batch there are ``rows`` and ``ms``, and ``<step>_ms`` of each step that Spark names.
    """

    batches: dict[tuple[int, str], list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    ages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    steady: dict[tuple[str, int, str], Steady] = field(default_factory=lambda: defaultdict(Steady))


def page(figures: Figures, about: Mapping[str, str]) -> str:
    """The report; what was not measured has no section."""
    lines = ["# Streaming queries", "", "Made by `python -m bench.streams`; how: docs/benchmarks.md.", ""]
    lines += [f"- {what}: {about[what]}" for what in ("machine", "Python", "broker", "Flink", "Spark") if what in about]
    sections = (
        ("A micro-batch, each as soon as the last one is done", _at_once(figures)),
        ("Steady: a source of so many rows a second, a trigger each second", _steady(figures)),
        (
            "How old a row is when a read_committed reader has it, a trigger or a checkpoint each second",
            _ages(figures),
        ),
    )
    for title, found in sections:
        if found:
            lines += ["", f"## {title}", "", *found]
    return "\n".join(lines) + "\n"


def _at_once(figures: Figures) -> list[str]:
    rows = []
    for size in dict.fromkeys(size for size, _ in figures.batches):
        base = figures.batches.get((size, BASE), [])
        for sink in ALL:
            if found := figures.batches.get((size, sink)):
                rows.append(
                    [
                        NAMES[sink], f"{size:,}", f"{_median(found):.0f}", f"{_quantile(found, 0.9):.0f}",
                        f"{_step(found, 'addBatch'):.0f}", f"{_rate(found):,.0f}",
                        f"{_median(found) / _median(base):.2f}" if base else "",
                        f"{_rate(found) / _rate(base):.2f}" if base else "", str(len(found)),
                    ]
                )  # fmt: skip
    head = (
        "sink", "rows", "ms", "90 % within", "of it writing", "rows/s", "time, times Spark's own", "rows/s, times",
        "batches",
    )  # fmt: skip
    return table(head, rows) if rows else []


def _steady(figures: Figures) -> list[str]:
    rows = []
    for source, given in dict.fromkeys((source, given) for source, given, _ in figures.steady):
        base = figures.steady.get((source, given, BASE))
        for sink in SINKS:
            if found := figures.steady.get((source, given, sink)):
                batches = found.batches
                rows.append(
                    [
                        NAMES[sink], f"`{source}`", f"{given:,}", f"{_median(batches):.0f}",
                        f"{_quantile(batches, 0.9):.0f}",
                        f"{_median(batches) / _median(base.batches):.2f}" if base else "", f"{found.rate:,.0f}",
                        f"{found.rate / base.rate:.2f}" if base else "", str(len(batches)),
                    ]
                )  # fmt: skip
    head = (
        "sink", "source", "its rows/s", "ms", "90 % within", "time, times Spark's own", "rows/s that came through",
        "rows/s, times", "batches",
    )  # fmt: skip
    return table(head, rows) if rows else []


def _ages(figures: Figures) -> list[str]:
    rows = []
    for sink, ages in figures.ages.items():
        cuts = statistics.quantiles(ages, n=100)
        rows.append([NAMES[sink], *(f"{cuts[at - 1]:.0f}" for at in (50, 90, 99)), f"{len(ages):,}"])
    return table(("sink", "ms", "90 % within", "99 % within", "rows"), rows) if rows else []


def _median(found: Sequence[dict[str, float]]) -> float:
    return statistics.median(one["ms"] for one in found)


def _quantile(found: Sequence[dict[str, float]], part: float) -> float:
    ordered = sorted(one["ms"] for one in found)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def _step(found: Sequence[dict[str, float]], step: str) -> float:
    return statistics.median(one.get(f"{step}_ms", 0.0) for one in found)


def _rate(found: Sequence[dict[str, float]]) -> float:
    return sum(one["rows"] for one in found) / sum(one["ms"] for one in found) * 1000
