"""The campaign's book-keeping: what its page says is what its runs were."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import checkers
from tests.faults.__main__ import chosen, main
from tests.faults.campaign import RUNS_OF_A_CLUSTER, Campaign, batches
from tests.faults.environment import Environment
from tests.faults.facts import Violation
from tests.faults.generating import REAL, generate
from tests.faults.places import PLACES
from tests.faults.report import KINDS, MILLION, Tally, told_of, tree_of_the_package, write
from tests.faults.result import Result
from tests.faults.scenario import WRITER_SIDE, Fault, Kind, Moment, Scenario
from tests.faults.shrinking import shrink
from tests.faults.zygote import ROOT


def result(seed: int, *violations: Violation, hit: bool = True) -> Result:
    scenario = generate(seed)
    return Result(
        scenario,
        seconds=2.0,
        records=100,
        attempts=1,
        struck=[hit for _ in scenario.faults],
        violations=list(violations),
        windows=[3.0],
        timeline="what happened",
        folder="there",
    )


def test_the_page_says_what_the_runs_were(tmp_path: Path) -> None:
    tally = Tally(5)
    for seed in (5, 6, 7, 9):
        tally.add(result(seed, hit=seed != 9))
    tally.add(result(11, Violation("lost", "number 4"), Violation("lost", "number 5")))
    tally.end()
    write(tally, tmp_path / "FAULTS.md")
    figures = json.loads((tmp_path / "FAULTS.json").read_text())
    page = (tmp_path / "FAULTS.md").read_text()
    assert figures["runs"] == 5 and figures["records"] == 500
    assert figures["violations"]["lost"] == 2 and figures["violations"]["torn"] == 0
    assert figures["failed seeds"] == [11] and "Seeds: 11." in page
    assert f"| {tree_of_the_package()} |" in page
    assert "| lost | 2 |" in page and "| seeds | 5 to 7, 9, 11 |" in page
    meant, struck = (sum(f[what] for f in figures["faults"]) for what in ("meant", "struck"))
    assert meant - struck == len(generate(9).faults)
    assert sum(figures["dimensions"]["Kafka"].values()) == 5


def test_the_page_counts_faults_by_target_and_by_step_and_shows_what_none_was_meant_for(tmp_path: Path) -> None:
    place = PLACES[3].name
    killed = Fault(Kind.SIGKILL, "decide", Moment(step=place))
    scenario = replace(generate(5), faults=(killed, killed, Fault(Kind.NET_CUT, WRITER_SIDE)))
    tally = Tally(1)
    tally.add(Result(scenario, struck=[True, False, False], records=MILLION, foreign_committed=7, plain_acked=8))
    write(tally, tmp_path / "FAULTS.md")
    page = (tmp_path / "FAULTS.md").read_text()
    for row in (
        "| sigkill | decide | 2 | 1 |",
        "| net_cut | writers | 1 | 0 |",
        "| ledger_full |  | 0 | 0 |",
        f"| {place} | 2 | 1 |",
        f"| {PLACES[4].name} | 0 | 0 |",
        "| largest run, records | 1,000,000 |",
        "| runs of a million records | 1 |",
        "| committed transactions of other applications | 7 |",
        "| their plain records | 8 |",
    ):
        assert row in page
    assert set(KINDS) == {*checkers.KINDS, "harness"} <= set(json.loads(page_json(tmp_path))["violations"])
    assert {kind.value for kind in Kind} == {f["kind"] for f in json.loads(page_json(tmp_path))["faults"]}


def page_json(folder: Path) -> str:
    return (folder / "FAULTS.json").read_text()


def test_a_campaign_that_was_broken_off_says_so(tmp_path: Path) -> None:
    tally = Tally(20)
    tally.add(result(5))
    write(tally, tmp_path / "FAULTS.md")
    assert "| runs | 1 of 20 with distinct seeds: broken off |" in (tmp_path / "FAULTS.md").read_text()
    assert "1 of 20 runs" in tally.summary()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_campaign_in_good_order(number: int, tmp_path: Path) -> None:
    """As a shell's background job: with SIGINT ignored."""
    command = [sys.executable, "-m", "tests.faults.endless_campaign"]
    environ = os.environ | {"RUNS": "4", "OUT": str(tmp_path / "FAULTS.md")}
    campaign = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        assert campaign.stdout is not None
        assert any("second run begins" in line for line in campaign.stdout)
        campaign.send_signal(number)
        told = campaign.stdout.read()
        assert campaign.wait(60) == 1
    finally:
        campaign.kill()
        campaign.wait()
    assert "2 of 4 runs" in told, told
    assert "2 of 4 with distinct seeds: broken off" in (tmp_path / "FAULTS.md").read_text()


def test_a_page_is_not_overwritten_by_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Campaign):
        def play(self, scenarios: Iterable[Scenario]) -> None:
            raise RuntimeError("the cluster does not start")

    monkeypatch.setattr("tests.faults.__main__.Campaign", Broken)
    page = tmp_path / "FAULTS.md"
    page.write_text("what was found before")
    with pytest.raises(RuntimeError, match="does not start"):
        main({"RUNS": "2", "OUT": str(page)})
    assert page.read_text() == "what was found before"


def test_a_failing_run_tells_how_to_play_it_again() -> None:
    told = told_of(result(11, Violation("lost", "number 4")), 1)
    for part in ("lost: number 4", generate(11).to_json(), "what happened", "make faults SEED=11"):
        assert part in told
    assert "make faults" not in told_of(result(11), 1)
    other = result(11, Violation("lost", "number 4"))
    other.scenario = replace(other.scenario, partitions=13)  # its seed makes another
    assert "SEED=" not in told_of(other, 1) and "make faults SCENARIO=" in told_of(other, 1)


def test_a_run_by_another_engine_is_played_again_by_that_one() -> None:
    (real,) = chosen({"SEED": str(REAL + 5), "ENGINE": "arrow"}, random.Random(1))
    assert real == replace(generate(REAL + 5), engine="arrow")
    failed = result(REAL + 5, Violation("lost", "number 4"))
    assert f"make faults SEED={REAL + 5}" in told_of(failed, 1)
    failed.scenario = real
    assert f"make faults ENGINE=arrow SEED={REAL + 5}" in told_of(failed, 1)


def test_runs_are_sorted_by_the_cluster_that_they_need() -> None:
    scenarios = [generate(seed) for seed in range(400)]
    found = list(batches(scenarios))
    assert sorted(s.seed for batch in found for s in batch) == list(range(400))
    assert all(len({s.cluster for s in batch}) == 1 and len(batch) <= RUNS_OF_A_CLUSTER for batch in found)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Scenario, Environment]]:
    """What a campaign plays, and in which environment; nothing is started."""
    found: list[tuple[Scenario, Environment]] = []

    def play(scenario: Scenario, kafka: object, environment: Environment) -> Result:
        found.append((scenario, environment))
        return result(scenario.seed)

    monkeypatch.setattr("tests.faults.campaign.cluster", nullcontext)
    monkeypatch.setattr("tests.faults.campaign.play", play)
    monkeypatch.setattr(Environment, "zygote", "none")
    return found


def test_a_run_whose_postgresql_goes_down_has_one_of_its_own(
    played: list[tuple[Scenario, Environment]], tmp_path: Path
) -> None:
    with Environment(tmp_path) as environment:
        Campaign(environment, lambda result: None).play([generate(seed) for seed in range(500)])
    assert len(played) == 500
    assert {scenario.takes_database_down for scenario, _ in played} == {True, False}
    assert all((there is not environment) is scenario.takes_database_down for scenario, there in played)


def test_a_campaign_that_is_stopped_begins_no_run(
    played: list[tuple[Scenario, Environment]], tmp_path: Path
) -> None:
    with Environment(tmp_path) as environment:
        campaign = Campaign(environment, lambda result: campaign.stop(), side_by_side=1)
        campaign.play([s for s in map(generate, range(100)) if not s.is_alone])
    assert len(played) == 1


def test_what_is_asked_for_is_played() -> None:
    dice = random.Random(1)
    assert [s.seed for s in chosen({"SEED": "7"}, dice)] == [7]
    assert [s.seed for s in chosen({"SEED": "7..9,3"}, dice)] == [7, 8, 9, 3]
    assert len({s.seed for s in chosen({"RUNS": "4"}, dice)}) == 4
    assert {s.cluster for s in chosen({"RUNS": "4", "CLUSTER": "4.4x1"}, dice)} == {("4.4", 1)}
    engines = {s.seed >= REAL: s.engine for s in chosen({"RUNS": "4", "REAL": "2", "ENGINE": "connect"}, dice)}
    assert engines == {True: "connect", False: "spark-submit"}
    with pytest.raises(SystemExit, match=r"ENGINE=flink is none of spark-submit, arrow, connect"):
        chosen({"ENGINE": "flink"}, dice)


def test_shrinking_leaves_what_makes_it_fail() -> None:
    scenario = next(s for s in map(generate, range(1000)) if len(s.loads) > 2 and len(s.faults) == 3 and s.brokers == 3)
    guilty = scenario.faults[1].kind

    def still_fails(s: Scenario) -> bool:
        return any(fault.kind is guilty for fault in s.faults) and max(s.tasks) >= 2

    found = shrink(scenario, still_fails)
    assert {fault.kind for fault in found.faults} == {guilty}
    assert len(found.loads) == 1 and found.records == 100
    assert (found.brokers, max(found.tasks), found.partitions) == (1, 2, 2)
