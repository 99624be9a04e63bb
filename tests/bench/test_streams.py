"""Streaming queries: what the page makes of times of batches, ages of rows and what came through; who wrote too little;
and steady operation on a real broker and a real session.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from airflow_kafka_eos.sandbox.jars import cache_root
from bench.broker import Broker
from bench.jvm import spark_sink
from bench.logcheck import Found, NotWhatWasWritten
from bench.stream_report import ALL, BASE, FLOOR, SINKS, SOURCES, Figures, page
from bench.streams import Bench, came, check, numbers, orders, spark_host
from tests.postgresql import PostgreSQL

ABOUT = {"machine": "some", "Spark": "local[2]"}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")][1:-1]


def test_the_page_has_ratios_to_sparks_own_sink() -> None:
    figures = Figures()
    for sink, ms in zip(ALL, (100.0, 120.0, 150.0, 200.0), strict=True):
        figures.batches[1000, sink] += [{"rows": 1000, "ms": ms * n, "addBatch_ms": ms / 2} for n in (1, 1, 4)]
    text = page(figures, ABOUT)
    (ours,) = [cells(line) for line in text.splitlines() if line.startswith("| `kafka_eos`")]
    assert ours[1:] == ["1,000", "150", "600", "75", "3,333", "1.50", "0.67", "3"]
    (floor,) = [cells(line) for line in text.splitlines() if "writes nothing" in line]
    assert floor[-3:] == ["1.20", "0.83", "3"]
    assert "How old" not in text
    assert "- machine: some" in text.splitlines()


def test_the_page_has_how_old_rows_are() -> None:
    figures = Figures()
    figures.ages["flink"] += [float(n) for n in range(1, 101)]
    (line,) = [cells(line) for line in page(figures, ABOUT).splitlines() if line.startswith("| Flink")]
    assert line[1:] == ["50", "91", "100", "100"]


def test_the_page_has_steady_operation() -> None:
    figures = Figures()
    # in two rounds: what came through is of all their seconds, not the mean of what each has
    for sink, ms, rows in (BASE, 100.0, 16_000), ("kafka_eos", 250.0, 12_000):
        found = figures.steady["kafka", 1000, sink]
        for seconds in (12.0, 4.0):
            found.batches += [{"rows": 1000, "ms": ms * n} for n in (1, 1, 4)]
            found.seconds += seconds
        found.rows += rows
    text = page(figures, ABOUT)
    title = "## Steady: a source of so many rows a second, a trigger each second"
    assert [line for line in text.splitlines() if line.startswith("## ")] == [title]
    spark, ours = [cells(line) for line in text.splitlines() if "`kafka`" in line]
    assert spark[1:] == ["`kafka`", "1,000", "100", "400", "1.00", "1,000", "1.00", "6"]
    assert ours[1:] == ["`kafka`", "1,000", "250", "1000", "2.50", "750", "0.75", "6"]


def test_knobs_may_be_empty_and_every_other_round_goes_from_the_end() -> None:
    assert numbers("1000,100000") == [1000, 100000]
    assert numbers("") == numbers("0") == []
    assert list(orders(SINKS, 3)) == [SINKS, SINKS[::-1], SINKS]


def test_only_what_a_reader_sees_has_come_through() -> None:
    assert came([Found(committed=2, open=5), Found(committed=1, aborted=5, plain=5)], "kafka_eos") == 3
    assert came([Found(plain=2), Found(plain=1, committed=5)], BASE) == 3


@pytest.mark.broker
@pytest.mark.spark
def test_what_came_through_is_counted_in_the_log(postgresql: PostgreSQL, tmp_path: Path) -> None:
    postgresql.run("CREATE DATABASE bench_streams TEMPLATE template_ledger")
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    jars, rate = spark_sink(root, version("pyspark")), 500
    with (
        Broker(tmp_path / "broker") as broker,
        spark_host(jars, tmp_path / "streams.log", postgresql.url("bench_streams")) as spark,
    ):
        bench = Bench(broker, spark, tmp_path)
        bench.batches(100, FLOOR, 2)
        assert [one["rows"] for one in bench.figures.batches[100, FLOOR]] == [100, 100]
        bench.fill(rate, 3)
        bench.steady("rate", rate, BASE, 1, is_warm_up=True)
        assert not bench.figures.steady
        for source in SOURCES:
            for sink in (BASE, "kafka_eos"):
                bench.steady(source, rate, sink, 3)
    assert list(bench.figures.steady) == [(source, rate, sink) for source in SOURCES for sink in (BASE, "kafka_eos")]
    for (source, _, _), found in bench.figures.steady.items():
        if source == "kafka":
            assert {one["rows"] for one in found.batches} == {rate}  # a trigger takes a second's rows
        # both looks are behind a batch's end; on a slow machine one of them may come behind the next one's
        told = [one["rows"] for one in found.batches]
        assert abs(found.rows - sum(told)) <= max(told)
        assert found.seconds >= 3


def test_a_sink_that_has_written_too_little_is_found_out() -> None:
    check([Found(committed=2), Found(committed=3)], 5, "kafka_eos")
    check([Found(plain=5)], 5, BASE)
    for found in (Found(committed=5), Found(plain=4)):
        with pytest.raises(NotWhatWasWritten, match="of 5 rows"):
            check([found], 5, BASE)
    with pytest.raises(NotWhatWasWritten, match="4 of 5"):
        check([Found(committed=4, open=1)], 5, "kafka_eos")
