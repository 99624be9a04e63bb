"""What a campaign found, for people: a line per run, all about a run that went wrong, and the page at the end."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.faults import checkers
from tests.faults.generating import generate
from tests.faults.places import PLACES
from tests.faults.result import Result
from tests.faults.scenario import ENGINES, Fault, Kind, dimensions

#: everything that the checkers can find, and a harness that fails by itself
KINDS = (*checkers.KINDS, "harness")
MILLION = 1_000_000
_VERSIONS = ("apache-airflow", "pyspark", "kafka-python", "confluent-kafka", "pyarrow", "sqlalchemy")


@dataclass
class Tally:
    """Counts over runs. Times are monotonic seconds.

    :param meant_runs: how many there are to be; fewer are a campaign that was broken off, or whose time was up.
    :param meant: faults of the scenarios, by kind and target; ``struck`` those that took effect.
    """

    meant_runs: int
    runs: int = 0
    records: int = 0
    attempts: int = 0
    repairs: int = 0
    ended_by_maintenance: int = 0
    foreign_committed: int = 0
    plain_acked: int = 0
    of_a_million: int = 0
    largest: int = 0
    read_by_java: int = 0
    through_airflow: int = 0
    seeds: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)
    by_dimension: dict[str, Counter[str]] = field(default_factory=dict)
    meant: Counter[tuple[str, str]] = field(default_factory=Counter)
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    meant_at: Counter[str] = field(default_factory=Counter)
    struck_at: Counter[str] = field(default_factory=Counter)
    windows: dict[str, list[float]] = field(default_factory=dict)
    run_s: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def add(self, result: Result) -> None:
        scenario = result.scenario
        self.runs += 1
        self.records += result.records
        self.attempts += result.attempts
        self.repairs += result.repairs
        self.ended_by_maintenance += result.ended_by_maintenance
        self.foreign_committed += result.foreign_committed
        self.plain_acked += result.plain_acked
        self.of_a_million += result.records >= MILLION
        self.largest = max(self.largest, result.records)
        self.read_by_java += result.read_by_java
        self.through_airflow += result.through_airflow
        self.seeds.append(scenario.seed)
        self.run_s.append(result.seconds)
        if result.violations:
            self.failed.append(scenario.seed)
        self.violations.update(v.kind for v in result.violations)
        for name, value in dimensions(scenario).items():
            self.by_dimension.setdefault(name, Counter())[value] += 1
        for fault, hit in zip(scenario.faults, result.struck, strict=True):
            self._count(fault, hit)
        self.windows.setdefault(scenario.scope, []).extend(result.windows)

    def _count(self, fault: Fault, hit: bool) -> None:
        what = (fault.kind.value, fault.target)
        self.meant[what] += 1
        self.struck[what] += hit
        if fault.moment.step is not None:
            self.meant_at[fault.moment.step] += 1
            self.struck_at[fault.moment.step] += hit

    def end(self) -> None:
        self.ended = time.monotonic()

    def _none_meant(self) -> dict[tuple[str, str], int]:
        """A kind that no scenario asked for is to be seen, too."""
        return {(kind.value, ""): 0 for kind in set(Kind) - {Kind(kind) for kind, _ in self.meant}}

    def rates(self) -> dict[str, tuple[int, int]]:
        """By kind of fault: how many took effect, of how many."""
        found: dict[str, tuple[int, int]] = {}
        for (kind, target), meant in self.meant.items():
            struck, of = found.get(kind, (0, 0))
            found[kind] = (struck + self.struck[kind, target], of + meant)
        return found

    @property
    def minutes(self) -> float:
        return ((self.ended or time.monotonic()) - self.began) / 60

    def summary(self) -> str:
        found = ", ".join(f"{kind} {count}" for kind, count in sorted(self.violations.items())) or "none"
        return (
            f"{self.runs} of {self.meant_runs} runs, {self.records:,} records, {self.attempts} attempts, "
            f"{self.repairs} repairs, {sum(self.struck.values())} of {sum(self.meant.values())} faults struck, "
            f"{self.minutes:.1f} minutes; violations: {found}"
            + (f"; seeds {sorted(self.failed)}" if self.failed else "")
        )

    def figures(self) -> dict[str, Any]:
        """JSON values; the page shows the same."""
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in _VERSIONS},
            },
            "tree": tree_of_the_package(),
            "seeds": sorted(self.seeds),
            "meant runs": self.meant_runs,
            "runs": self.runs,
            "records": self.records,
            "attempts": self.attempts,
            "repairs": self.repairs,
            "ended by maintenance": self.ended_by_maintenance,
            "other applications": {"transactions": self.foreign_committed, "plain records": self.plain_acked},
            "runs of a million records": self.of_a_million,
            "largest run": self.largest,
            "read by Java's consumer too": self.read_by_java,
            "through Airflow and Spark": self.through_airflow,
            "minutes": round(self.minutes, 1),
            "seconds of a run": {
                "median": round(statistics.median(self.run_s), 1) if self.run_s else 0,
                "longest": round(max(self.run_s, default=0), 1),
            },
            "violations": {kind: self.violations[kind] for kind in KINDS},
            "failed seeds": sorted(self.failed),
            "faults": [
                {"kind": kind, "target": target, "meant": meant, "struck": self.struck[kind, target]}
                for (kind, target), meant in sorted({**self._none_meant(), **self.meant}.items())
            ],
            "steps": {
                place.name: {"meant": self.meant_at[place.name], "struck": self.struck_at[place.name]}
                for place in PLACES
            },
            "dimensions": {
                name: dict(sorted(counts.items(), key=lambda c: (len(c[0]), c[0])))
                for name, counts in self.by_dimension.items()
            },
            "visible in part, ms": {
                scope: {
                    "loads": len(found),
                    "median": round(statistics.median(found), 1),
                    "longest": round(max(found), 1),
                }
                for scope, found in sorted(self.windows.items())
                if found
            },
        }


def tree_of_the_package() -> str:
    """What ran, as git names the package's folder: the same for every commit that leaves the package alone."""
    where: dict[str, Any] = {"cwd": Path(__file__).parents[2], "capture_output": True, "text": True, "check": True}
    try:
        changed = subprocess.run(["git", "status", "--porcelain", "airflow_kafka_eos"], **where).stdout.strip()
        name = subprocess.run(["git", "rev-parse", "HEAD:airflow_kafka_eos"], **where).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as e:
        return f"unknown: {e}"
    return f"{name}, changed since" if changed else name


def told_of(result: Result, number: int) -> str:
    """A line; of a run that went wrong, all that there is."""
    scenario = result.scenario
    hits = sum(result.struck)
    line = (
        f"{number:5} seed {scenario.seed:<10} {result.seconds:5.1f} s {result.records:7,} records "
        f"{hits}/{len(scenario.faults)} faults "
        f"{', '.join(f.kind.value + ' ' + f.target for f in scenario.faults)}"
    )
    if not result.violations:
        return line
    violations = "\n".join(f"  {v.kind}: {v.text}" for v in result.violations[:20])
    is_generated = replace(generate(scenario.seed), engine=scenario.engine) == scenario
    engine = f"ENGINE={scenario.engine} " if scenario.engine != ENGINES[0] else ""
    again = f"{engine}SEED={scenario.seed}" if is_generated else "SCENARIO=a file with the scenario above"
    return (
        f"{line}\nVIOLATED by seed {scenario.seed}:\n{violations}\n"
        f"scenario: {scenario.to_json()}\ntimeline:\n{result.timeline}\n"
        f"kept in {result.folder}\nplay it again: make faults {again}\n"
    )


def write(tally: Tally, page: Path) -> None:
    """The page, and its figures as JSON beside it."""
    figures = tally.figures()
    page.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    page.write_text(_page(figures), encoding="utf-8")


def _page(f: dict[str, Any]) -> str:
    parts = [
        "# The fault campaign, measured",
        "Written by `make faults`; what it does is in `tests/faults`.",
        _table(
            ("", ""),
            [
                ("date", f["date"]),
                ("tree (`git rev-parse HEAD:airflow_kafka_eos`)", f["tree"]),
                ("runs", _runs(f)),
                ("seeds", _ranges(f["seeds"])),
                ("records, visible at the end", f"{f['records']:,}"),
                ("largest run, records", f"{f['largest run']:,}"),
                ("runs of a million records", f["runs of a million records"]),
                ("committed transactions of other applications", f"{f['other applications']['transactions']:,}"),
                ("their plain records", f"{f['other applications']['plain records']:,}"),
                ("attempts", f"{f['attempts']:,}"),
                ("repairs of lost transactions", f"{f['repairs']:,}"),
                ("transactions that maintenance had to end", f"{f['ended by maintenance']:,}"),
                ("runs through Airflow and Spark themselves", f["through Airflow and Spark"]),
                ("runs that Java's consumer read, too", str(f["read by Java's consumer too"])),
                ("minutes", f["minutes"]),
                ("seconds of a run", ", ".join(f"{k} {v}" for k, v in f["seconds of a run"].items())),
                ("versions", ", ".join(f"{k} {v}" for k, v in f["versions"].items())),
            ],
        ),
        "## Violations",
        _table(("kind", "found"), list(f["violations"].items())),
        f"Seeds: {', '.join(map(str, f['failed seeds'])) or 'none'}.",
        "## Visible in part",
        "From a load's first commit marker in the log to its last (tests/faults/markers.py): for so long a "
        "`read_committed` reader may see a part of it.",
        _table(
            ("scope", "loads", "median ms", "longest ms"),
            [(scope, *found.values()) for scope, found in f["visible in part, ms"].items()],
        ),
        "## Faults",
        "Meant by the scenarios, and struck: what took effect. A process was there to be killed or stopped, a write "
        "met the lock or the full disk, a broker or PostgreSQL really went down, a proxy touched a connection, an open "
        "transaction timed out (it was open when its process fell asleep, and neither open nor committed before that "
        "woke up). What no run came by strikes nobody.",
        _table(("fault", "target", "meant", "struck"), [tuple(row.values()) for row in f["faults"]]),
        "At the named steps (tests/faults/places.py):",
        _table(("step", "meant", "struck"), [(name, *n.values()) for name, n in f["steps"].items()]),
        "## Runs by dimension",
        _table(
            ("dimension", "runs"),
            [(name, ", ".join(f"{v}: {n}" for v, n in counts.items())) for name, counts in f["dimensions"].items()],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _runs(f: dict[str, Any]) -> str:
    distinct = " with distinct seeds" if len(set(f["seeds"])) == f["runs"] else ""
    if f["runs"] < f["meant runs"]:
        return f"{f['runs']:,} of {f['meant runs']:,}{distinct}: broken off"
    return f"{f['runs']:,}{distinct}"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _ranges(numbers: list[int]) -> str:
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found)
