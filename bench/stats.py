"""Medians, spread and ratios of what was measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """One timed write of a contestant. ``seconds`` is all of it, ``commit_seconds`` the part of it that commits.

    :param round: 0 for a cold one; of steady writes the number.
    :param start_seconds: cold only: from starting the process until it takes its first command.
    :param batch_bytes: mean size of the record batches in the log.
    :param log_bytes: all record batches in the log.
    """

    case: str
    contestant: str
    round: int
    seconds: float
    commit_seconds: float
    client_cpu: float
    broker_cpu: float
    records: int
    bytes: int
    batch_bytes: int = 0
    log_bytes: int = 0
    transactions: int = 0
    start_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON: rounded to what a clock here can tell."""
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Summary:
    """Of the warm runs of one contestant in one case. Rates in million records/s, CPU in s per million."""

    case: str
    contestant: str
    runs: int
    seconds: float
    fastest: float
    slowest: float
    commit_seconds: float
    rate: float
    megabytes_per_s: float
    client_cpu: float
    broker_cpu: float
    batch_bytes: int
    log_bytes: int
    transactions: int


def summarise(runs: Sequence[Run]) -> Summary:
    """Medians of runs of one case and contestant.

    :raises ValueError: there are none, or of more than one kind.
    """
    if len({(run.case, run.contestant, run.records) for run in runs}) != 1:
        raise ValueError("runs of exactly one case and contestant are summarised")
    seconds = statistics.median(run.seconds for run in runs)
    millions = runs[0].records / 1e6
    return Summary(
        case=runs[0].case,
        contestant=runs[0].contestant,
        runs=len(runs),
        seconds=seconds,
        fastest=min(run.seconds for run in runs),
        slowest=max(run.seconds for run in runs),
        commit_seconds=statistics.median(run.commit_seconds for run in runs),
        rate=millions / seconds,
        megabytes_per_s=runs[0].bytes / 1e6 / seconds,
        client_cpu=statistics.median(run.client_cpu for run in runs) / millions,
        broker_cpu=statistics.median(run.broker_cpu for run in runs) / millions,
        batch_bytes=int(statistics.median(run.batch_bytes for run in runs)),
        log_bytes=int(statistics.median(run.log_bytes for run in runs)),
        transactions=int(statistics.median(run.transactions for run in runs)),
    )


def summaries(runs: Iterable[Run]) -> dict[tuple[str, str], Summary]:
    """By case and contestant, warm runs only, in the order in which they first came."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.round > 0:
            grouped.setdefault((run.case, run.contestant), []).append(run)
    return {key: summarise(mine) for key, mine in grouped.items()}


@dataclass(frozen=True)
class Steady:
    """Of many writes one after the other in one process: the first one, and medians of the last half."""

    first: Summary
    last: Summary
    writes: int


def steady(runs: Iterable[Run]) -> dict[tuple[str, str], Steady]:
    """By case and contestant, in the order in which they first came.

    :param runs: of each contestant in the order in which it wrote.
    """
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.case, run.contestant), []).append(run)
    return {
        key: Steady(summarise(mine[:1]), summarise(mine[len(mine) // 2 :]), len(mine)) for key, mine in grouped.items()
    }


def ratio(
    found: dict[tuple[str, str], Summary], case: str, one: str, others: Sequence[str]
) -> tuple[float, str] | None:
    """How many times as fast as the fastest of the others, and which that is; None when one of the sides is missing."""
    mine = found.get((case, one))
    theirs = [found[case, other] for other in others if (case, other) in found]
    if mine is None or not theirs:
        return None
    best = max(theirs, key=lambda summary: summary.rate)
    return mine.rate / best.rate, best.contestant
