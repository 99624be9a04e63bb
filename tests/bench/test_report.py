"""The report: tables that line up, JSON that can be read, everything that was left out is named."""

from __future__ import annotations

import json

from bench.report import Results, as_json, markdown, table
from bench.stats import Run


def run(contestant: str, seconds: float, round_: int = 1, case: str = "small-none", start: float = 0.0) -> Run:
    size, log = 280_000_000, 281_000_000
    return Run(case, contestant, round_, seconds, 0.01, 4.0, 1.0, 2_000_000, size, 512_000, log, 2, start)


RESULTS = Results(
    environment={"machine": "2 cores"},
    runs=[
        run("arrow-task", 2.0), run("arrow-task", 3.0, 2), run("arrow-task", 4.0, 3), run("foreach", 30.0),
        run("foreach@default", 27.0), run("java", 3.0, case="large-zstd"), run("arrow-task", 7.0, 0, start=6.0),
    ],
    skipped={"arrow-load": "not there"},
    extras=[("Ending 1,000 prepared transactions", [("times as fast", "8.0")])],
)  # fmt: skip


def test_cells_line_up_and_numbers_stand_right() -> None:
    assert table(("who", "s"), [["a", "1.25"], ["long", "10"]]) == [
        "| who  |    s |",
        "|------|-----:|",
        "| a    | 1.25 |",
        "| long |   10 |",
    ]


def test_the_report_shows_medians_ratios_cold_figures_and_what_is_missing() -> None:
    text = markdown(RESULTS)
    assert "## 2,000,000 records of 140 bytes, compression none" in text
    (ours,) = [line for line in text.splitlines() if "arrow writer, scope task" in line and "2.00–4.00" in line]
    assert [cell.strip() for cell in ours.split("|")][3:9] == ["3.00", "2.00–4.00", "0.010", "0.67", "93", "2.00"]
    (target,) = [line for line in text.splitlines() if line.startswith("| arrow writer / foreachPartition")]
    # against the faster one of the two; nobody has run ours at its defaults
    assert [cell.strip() for cell in target.split("|")][3:7] == ["9.00", "", "9", "foreach@default"]
    cold = text[text.index("## Cold") :]
    assert "6.0" in cold and "7.00" in cold
    assert "- arrow-load: not there" in text
    assert "| times as fast |" in text


def test_a_case_without_runs_has_no_table() -> None:
    assert "compression zstd" in markdown(RESULTS)
    assert "compression zstd" not in markdown(Results(runs=[run("java", 1.0)]))


def test_json_has_every_run_and_one_line_for_each_contestant_of_a_case() -> None:
    text = as_json(RESULTS)
    found = json.loads(text)
    assert found["skipped"] == {"arrow-load": "not there"}
    ours = next(m for m in found["measured"] if m["contestant"] == "arrow-task")
    assert ours["median"]["seconds"] == 3.0
    assert [r["seconds"] for r in ours["runs"]] == [2.0, 3.0, 4.0, 7.0]
    assert sum(line.startswith('{"case"') for line in text.splitlines()) == 4
    assert json.loads(as_json(Results())) == {"environment": {}, "measured": [], "extras": [], "skipped": {}}
