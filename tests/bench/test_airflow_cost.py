"""The arithmetic of the page about what exactly-once costs in Airflow; the measurement itself needs a quiet machine."""

from __future__ import annotations

import runpy
from pathlib import Path

import bench
from bench.airflow_cost import BASE, KINDS, Figures, Step, page, rows_of, seconds_of, steps_of

RUN = {"queued_at": "2025-01-01T00:00:00Z", "end_date": "2025-01-01T00:00:12.500000Z"}
TASKS = [
    {"task_id": "load.loaded", "start_date": "2025-01-01T00:00:11Z", "end_date": "2025-01-01T00:00:12Z"},
    {"task_id": "load.begin", "start_date": "2025-01-01T00:00:01Z", "end_date": "2025-01-01T00:00:02Z"},
    {"task_id": "load.cleanup", "start_date": "2025-01-01T00:00:10.500000Z", "end_date": "2025-01-01T00:00:12.5Z"},
    {"task_id": "load.prepare", "start_date": "2025-01-01T00:00:02.500000Z", "end_date": "2025-01-01T00:00:10Z"},
]


def test_a_runs_time_is_waiting_and_running() -> None:
    assert seconds_of(RUN) == 12.5
    assert steps_of(RUN, TASKS) == [
        Step("begin", 1.0, 1.0),
        Step("prepare", 0.5, 7.5),
        # side by side: neither waits for the other
        Step("cleanup", 0.5, 2.0),
        Step("loaded", 1.0, 1.0),
    ]


def test_each_kind_has_its_dags_and_writes_the_same_rows() -> None:
    """Those of Spark's job are compared with these in each measurement."""
    dags = Path(bench.__file__).with_name("dags")
    assert {path.stem for path in dags.glob("*.py")} == set(KINDS)
    rows = runpy.run_path(str(dags / "jobs" / "stream.py"))["load"]("load-1", 3).to_pylist()
    made = [(row["key"].encode(), row["value"].encode()) for row in rows]
    assert made == rows_of(["load-1"], 3) == [(b"0", b"load-1 0"), (b"1", b"load-1 1"), (b"2", b"load-1 2")]
    assert rows_of(["a", "b"], 1) == [(b"0", b"a 0"), (b"0", b"b 0")]


def test_the_page_says_whether_each_engine_is_within_what_was_set() -> None:
    figures = Figures(
        loads={
            BASE: [8.0, 9.0, 10.0], "exactly_once": [13.0, 15.0, 14.5], "exactly_once_arrow": [4.0, 4.5, 5.0],
            "exactly_once_connect": [4.9, 5.0, 6.0],
        },
        steps={BASE: [Step("write", 1.0, 8.0)], "exactly_once_arrow": [Step("begin", 1.0, 0.5)]},
        backfills={
            BASE: [60.0, 40.0], "exactly_once": [70.0, 45.0], "exactly_once_arrow": [20.0, 21.0],
            "exactly_once_connect": [30.0, 31.0],
        },
        days=30,
    )  # fmt: skip
    text = page(figures, records=1000, at_a_time=4, kafka_version="4.4.0")
    assert "exactly once: 1.61 times as long as at least once (MORE than the 1.15 that were set)" in text
    assert 'exactly once, engine="arrow": 0.50 times as long as at least once (within the 0.5 that were set)' in text
    assert "exactly once: 1.15 times as long as at least once (within the 1.15 that were set)" in text
    assert 'exactly once, engine="arrow": 0.41 times as long as at least once (MORE than the 0.4 that were set)' in text
    assert "exactly once, Spark Connect: 0.56 times as long as at least once (within the 0.6 that were set)" in text
    assert "exactly once, Spark Connect: 0.61 times as long as at least once (MORE than the 0.6 that were set)" in text
    assert '| exactly once, engine="arrow": begin' in text
    assert "In\n2 parts, the kinds in turn." in text
    assert "backfill" not in page(
        Figures(figures.loads, figures.steps), records=1000, at_a_time=4, kafka_version="4.4.0"
    )
