"""Medians, spread and ratios: the figures that are shown are those that were measured."""

from __future__ import annotations

import pytest

from bench.stats import Run, ratio, steady, summaries, summarise


def run(contestant: str, seconds: float, round_: int = 1, **more: float) -> Run:
    return Run(
        case="small-none", contestant=contestant, round=round_, seconds=seconds, commit_seconds=0.0,
        client_cpu=more.get("client_cpu", 4.0), broker_cpu=1.0, records=2_000_000, bytes=280_000_000,
    )  # fmt: skip


def test_the_median_is_shown_with_the_fastest_and_the_slowest() -> None:
    one = summarise([run("a", 9.0, client_cpu=6.0), run("a", 2.0, client_cpu=2.0), run("a", 4.0, client_cpu=5.0)])
    assert (one.seconds, one.fastest, one.slowest, one.runs) == (4.0, 2.0, 9.0, 3)
    assert one.rate == 0.5  # two million in four seconds
    assert one.megabytes_per_s == 70
    assert one.client_cpu == 2.5  # five seconds for two million
    assert one.broker_cpu == 0.5


def test_runs_of_different_kinds_have_no_median() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        summarise([run("a", 1.0), run("b", 1.0)])
    with pytest.raises(ValueError, match="exactly one"):
        summarise([])


def test_cold_runs_and_warm_ups_are_not_in_the_medians() -> None:
    found = summaries([run("a", 50.0, round_=0), run("a", 70.0, round_=-1), run("a", 2.0)])
    assert found["small-none", "a"].seconds == 2.0


def test_steady_is_the_last_half_beside_the_first_write() -> None:
    every = [9.0, 8.0, 7.0, 2.0, 6.0, 4.0]
    found = steady([run("a", s, n, client_cpu=2 * s) for n, s in enumerate(every, 1)] + [run("b", 5.0)])
    a = found["small-none", "a"]
    assert (a.first.seconds, a.last.seconds, a.last.client_cpu, a.last.runs, a.writes) == (9.0, 4.0, 4.0, 3, 6)
    b = found["small-none", "b"]
    assert (b.first.seconds, b.last.seconds, b.writes) == (5.0, 5.0, 1)
    assert steady([run("a", s, n) for n, s in enumerate([9.0, 8.0, 3.0], 1)])["small-none", "a"].last.runs == 2


def test_the_fastest_of_the_others_counts() -> None:
    found = summaries([run("ours", 2.0), run("slow", 8.0), run("fast", 4.0)])
    assert ratio(found, "small-none", "ours", ["slow", "fast"]) == (2.0, "fast")
    assert ratio(found, "small-none", "ours", ["absent"]) is None
    assert ratio(found, "small-none", "absent", ["fast"]) is None
    assert ratio(found, "large-none", "ours", ["fast"]) is None
