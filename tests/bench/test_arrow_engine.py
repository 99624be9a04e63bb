"""engine="arrow" beside Spark's tasks: who writes when, what the page says, and that each way writes everything."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from airflow_kafka_eos.sandbox.jars import cache_root
from bench.arrow_engine import (
    CONTESTANTS,
    ENGINE,
    PROCESSES,
    SPARK,
    THREADS,
    WARM_UP,
    Peak,
    page,
    peaks,
    plan,
    values,
)
from bench.broker import Broker
from bench.cases import CASES, Contestant
from bench.data import dataset
from bench.measure import Stage
from bench.stats import Run


def test_rounds_are_interleaved_and_every_other_one_goes_from_the_end() -> None:
    steps = list(plan([10, 20], 2))
    order = {key: [who for *_, who in group] for key, group in groupby(steps, lambda step: step[:2])}
    assert list(order) == [(WARM_UP, 10), (1, 10), (1, 20), (2, 10), (2, 20)]
    assert order[1, 20] == list(CONTESTANTS) and order[2, 20] == list(reversed(CONTESTANTS))


def test_the_page_has_times_and_ratios_of_each_number_of_records() -> None:
    def run(who: Contestant, seconds: float, cpu: float) -> Run:
        return Run("small-none", who.key, 1, seconds, 0.0, cpu, 1.0, 2_000_000, 280_000_000)

    runs = [run(SPARK, 3.0, 2.0), run(ENGINE, 2.0, 1.0), run(THREADS, 1.6, 1.0), run(PROCESSES, 1.0, 1.0)]
    about = dict.fromkeys(("machine", "Python", "Java", "broker", "Spark"), "some")
    made = page(runs, [Peak(1, 222, 460)], [["json", "90", "1.50", "135"]], about, "0.1")
    (line,) = [line for line in made.splitlines() if line.startswith('| engine="arrow"')]
    cells = [cell.strip() for cell in line.split("|")][2:-1]
    assert cells == ["2.00", "2.00–2.00", "1.00", "0.50", "2.00", "0.50", "1"]
    assert "0.50 × that of Spark's tasks" in made
    assert "1.25 × as fast as one in threads, 2.00 × in processes" in made
    assert "| 1 " in made and "460" in made and "| json " in made


def test_columns_become_values() -> None:
    found = values()
    assert [row[0].partition(",")[0] for row in found] == ["json", "confluent-avro"] * 2
    assert all(float(row[1]) > 30 for row in found)


@pytest.mark.broker
def test_each_way_writes_everything(tmp_path: Path) -> None:
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    records = dataset(tmp_path, "small", 3000, 2, 4)
    with Broker(tmp_path / "broker") as broker:
        stage = Stage(broker, root, tmp_path, 4)
        with stage.start("arrow") as host:
            stage.load(host, "arrow", records)
            for who, transactions in ((ENGINE, 1), (THREADS, 2), (PROCESSES, 2)):
                run = stage.write(host, who, CASES[0], records, WARM_UP)
                assert (run.records, run.transactions) == (3000, transactions)
        (peak,) = peaks(stage, tmp_path, tmp_path, [1], rows=3000)
        assert 50 < peak.generator < 2000 and 50 < peak.parquet < 2000
