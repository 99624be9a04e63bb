"""What is shown: Markdown tables and results.json. Pure: text out of values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.cases import CASES, CONTESTANTS, TARGETS, Contestant
from bench.stats import Run, Summary, ratio, steady, summaries

#: A figure beside the writes: title, and rows of (what, value as text).
Extra = tuple[str, list[tuple[str, str]]]


@dataclass
class Results:
    """All that was found.

    :param environment: versions, cores, knobs.
    :param runs: warm and cold ones.
    :param steady: writes one after the other in one process, of each contestant in their order.
    :param skipped: contestant -> reason.
    """

    environment: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    steady: list[Run] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    extras: list[Extra] = field(default_factory=list)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; all columns but the first are numbers, to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths)) + "|"
    return [line(head), rule, *(line(row) for row in rows)]


def markdown(results: Results) -> str:
    """The whole report."""
    found = summaries(results.runs)
    lines = ["# Benchmark results", "", "Made by `make bench`; how, and how to read it: docs/benchmarks.md.", ""]
    lines += [f"- {what}: {value}" for what, value in results.environment.items()]
    for case in CASES:
        rows = _rows(found, case.name)
        if rows:
            records = next(run for run in results.runs if run.case == case.name)
            size = records.bytes / records.records
            lines += ["", f"## {records.records:,} records of {size:.0f} bytes, compression {case.codec}", ""]
            lines += table(_HEAD, rows)
    lines += _targets(found)
    lines += _steady(results.steady)
    lines += _cold(results.runs, found)
    for title, extra in results.extras:
        lines += ["", f"## {title}", "", *table(("what", "figure"), extra)]
    if results.skipped:
        lines += ["", "## Left out", "", *(f"- {who}: {why}" for who, why in results.skipped.items())]
    return "\n".join(lines) + "\n"


_HEAD = (
    "contestant", "batches", "s", "from–to", "of it commit", "M records/s", "MB/s", "client CPU s/M", "broker CPU s/M",
    "log MB", "batch KB", "runs",
)  # fmt: skip


def _rows(found: Mapping[tuple[str, str], Summary], case: str) -> list[list[str]]:
    rows = []
    for contestant in CONTESTANTS:
        one = found.get((case, contestant.key))
        if one is not None:
            rows.append(_row(contestant, one))
    return rows


def _row(contestant: Contestant, one: Summary) -> list[str]:
    written = contestant.writes
    return [
        contestant.title,
        contestant.batches if written else "",
        f"{one.seconds:.2f}",
        f"{one.fastest:.2f}–{one.slowest:.2f}",
        f"{one.commit_seconds:.3f}" if contestant.is_ours else "",
        f"{one.rate:.2f}",
        f"{one.megabytes_per_s:.0f}",
        f"{one.client_cpu:.2f}",
        f"{one.broker_cpu:.2f}" if written else "",
        f"{one.log_bytes / 1e6:.0f}" if written else "",
        f"{one.batch_bytes / 1e3:.0f}" if written else "",
        str(one.runs),
    ]


def _targets(found: dict[tuple[str, str], Summary]) -> list[str]:
    rows = []
    for target in TARGETS:
        for case in CASES:
            measured = ratio(found, case.name, target.one, target.others)
            if measured is not None:
                aim = f"{target.aims[case.name]:g}" if case.name in target.aims else ""
                default = ratio(found, case.name, f"{target.one}@default", target.others)
                at_default = f"{default[0]:.2f}" if default is not None else ""
                rows.append([target.title, case.name, f"{measured[0]:.2f}", at_default, aim, measured[1]])
    head = ("how many times as fast", "case", "512 KiB", "ours at its default", "aim", "against")
    return ["", "## Against the others, warm", "", *table(head, rows)] if rows else []


def _steady(runs: Sequence[Run]) -> list[str]:
    found = steady(runs)
    rows = []
    for case in CASES:
        for contestant in CONTESTANTS:
            one = found.get((case.name, contestant.key))
            if one is not None:
                broker = [f"{part.broker_cpu:.2f}" if contestant.writes else "" for part in (one.first, one.last)]
                rows.append(
                    [
                        contestant.title,
                        contestant.batches if contestant.writes else "",
                        case.name,
                        str(one.writes),
                        f"{one.first.seconds:.2f}",
                        f"{one.last.seconds:.2f}",
                        f"{one.first.client_cpu:.2f}",
                        f"{one.last.client_cpu:.2f}",
                        *broker,
                    ]
                )
    head = (
        "contestant", "batches", "case", "writes", "first s", "steady s", "first client CPU s/M",
        "steady client CPU s/M", "first broker CPU s/M", "steady broker CPU s/M",
    )  # fmt: skip
    title = "## Steady: one write after the other in the same process, the first one and the last half"
    return ["", title, "", *table(head, rows)] if rows else []


def _cold(runs: Sequence[Run], found: Mapping[tuple[str, str], Summary]) -> list[str]:
    titles = {contestant.key: contestant.title for contestant in CONTESTANTS}
    rows = []
    for run in runs:
        if run.round == 0:
            warm = found.get((run.case, run.contestant))
            rows.append(
                [
                    titles[run.contestant],
                    run.case,
                    f"{run.start_seconds:.1f}",
                    f"{run.seconds:.2f}",
                    f"{warm.seconds:.2f}" if warm else "",
                    f"{run.client_cpu / run.records * 1e6:.2f}",
                ]
            )
    head = ("contestant", "case", "start s", "first action s", "warm s", "client CPU s/M")
    return ["", "## Cold: the first action of a fresh session or JVM", "", *table(head, rows)] if rows else []


def as_json(results: Results) -> str:
    """JSON with one line for each contestant of a case: readable in a diff."""
    found = summaries(results.runs)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in results.runs:
        groups.setdefault((run.case, run.contestant), []).append(run)
    measured = [
        {
            "case": case,
            "contestant": contestant,
            "median": _rounded(found.get((case, contestant))),
            "runs": [_short(run) for run in runs],
        }
        for (case, contestant), runs in groups.items()
    ]
    one_after_the_other = steady(results.steady)
    steadily = [
        {
            "case": case,
            "contestant": contestant,
            "first": _rounded(one.first),
            "last half": _rounded(one.last),
            "runs": [_short(run) for run in results.steady if (run.case, run.contestant) == (case, contestant)],
        }
        for (case, contestant), one in one_after_the_other.items()
    ]
    extras = [{"title": title, "figures": dict(rows)} for title, rows in results.extras]
    parts = [
        f'"environment": {json.dumps(results.environment, ensure_ascii=False)}',
        f'"measured": [\n{_lines(measured)}\n]',
        f'"steady": [\n{_lines(steadily)}\n]',
        f'"extras": [\n{_lines(extras)}\n]',
        f'"skipped": {json.dumps(results.skipped, ensure_ascii=False)}',
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(items: Sequence[Mapping[str, Any]]) -> str:
    return ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)


def _short(run: Run) -> dict[str, Any]:
    return {k: v for k, v in run.as_dict().items() if k not in ("case", "contestant") and (v or k == "round")}


def _rounded(summary: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    every = {k: getattr(summary, k) for k in ("seconds", "rate", "megabytes_per_s", "client_cpu", "broker_cpu")}
    return {k: round(v, 3) for k, v in every.items()}
