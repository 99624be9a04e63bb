"""The arithmetic of the page about what exactly-once costs in Airflow; the measurement itself needs a quiet machine."""

from __future__ import annotations

from bench.airflow_cost import Figures, Step, page, seconds_of, steps_of

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


def test_the_page_says_whether_it_is_within_what_was_set() -> None:
    figures = Figures(
        loads={"at_least_once": [8.0, 9.0, 10.0], "exactly_once": [13.0, 15.0, 14.5]},
        steps={"at_least_once": [Step("write", 1.0, 8.0)], "exactly_once": [Step("begin", 1.0, 0.5)]},
        backfills={"at_least_once": 100.0, "exactly_once": 129.0},
        days=30,
    )
    text = page(figures, records=1000, at_a_time=4, kafka_version="4.4.0")
    assert "Exactly once takes 5.5 s more (MORE than the 5 that were set)" in text
    assert "1.29 times as long (within the 1.3 that were set)" in text
    assert "| exactly once: begin" in text
    assert "backfill" not in page(
        Figures(figures.loads, figures.steps), records=1000, at_a_time=4, kafka_version="4.4.0"
    )
