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
    steady=[run("arrow-task", s, n) for n, s in enumerate([5.0, 9.0, 3.0, 4.0], 1)] + [run("floor", 1.0)],
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


def test_aims_stand_in_their_cases_only() -> None:
    cases = ("small-none", "large-none")
    text = markdown(Results(runs=[run(who, 3.0, case=c) for who in ("arrow-task", "flink-pooling") for c in cases]))
    lines = [line for line in text.splitlines() if line.startswith("| arrow writer / Flink")]
    assert [[cell.strip() for cell in line.split("|")][2:7:3] for line in lines] == [
        ["small-none", "1.2"],
        ["large-none", "1"],
    ]
    spark = markdown(Results(runs=[run(who, 3.0, case=c) for who in ("arrow-task", "spark-sink") for c in cases]))
    lines = [line for line in spark.splitlines() if line.startswith("| arrow writer / Spark's own")]
    assert [[cell.strip() for cell in line.split("|")][2:7:3] for line in lines] == [
        ["small-none", "2"],
        ["large-none", ""],
    ]


def test_the_first_write_and_the_steady_ones_stand_beside_each_other() -> None:
    text = markdown(RESULTS)
    lines = text[text.index("## Steady") : text.index("## Cold")].splitlines()
    (ours,) = [line for line in lines if "arrow writer" in line]
    # two million records: CPU seconds are halved
    assert [cell.strip() for cell in ours.split("|")][2:-1] == [
        "512 KiB", "small-none", "4", "5.00", "3.50", "2.00", "2.00", "0.50", "0.50",
    ]  # fmt: skip
    (floor,) = [line for line in lines if "transfer alone" in line]
    assert [cell.strip() for cell in floor.split("|")][-3:-1] == ["", ""]
    assert "## Steady" not in markdown(Results(runs=[run("java", 1.0)]))


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
    (steady, _) = found["steady"]
    assert steady["contestant"] == "arrow-task"
    assert (steady["first"]["seconds"], steady["last half"]["seconds"]) == (5.0, 3.5)
    assert [(r["round"], r["seconds"], r["broker_cpu"]) for r in steady["runs"]] == [
        (1, 5.0, 1.0), (2, 9.0, 1.0), (3, 3.0, 1.0), (4, 4.0, 1.0),
    ]  # fmt: skip
    assert sum(line.startswith('{"case"') for line in text.splitlines()) == 6
    assert json.loads(as_json(Results())) == {
        "environment": {}, "measured": [], "steady": [], "extras": [], "skipped": {},
    }  # fmt: skip
