"""Which ``batch.size`` is best for the arrow writer: the same load with each, interleaved.

``python -m bench.batch_size`` writes ``BATCH_SIZE.md`` where ``make bench`` writes its results, and has its knobs
``ROUNDS``, ``RECORDS``, ``WARM_UP``, ``CASES``, ``TASKS``, ``PARTITIONS``, ``BROKERS``, ``PARQUET`` and ``OUT``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.sandbox.jars import cache_root
from bench import jvm
from bench.broker import Broker
from bench.cases import CASES, CONTESTANTS, DEFAULTS, Case, Contestant, Knobs
from bench.data import dataset
from bench.environment import environment
from bench.measure import Stage
from bench.report import table
from bench.stats import Run, summaries

OURS = next(c for c in CONTESTANTS if c.key == f"arrow-task@{DEFAULTS}")
DEFAULT = ProducerOptions.batch_bytes
SIZES = (64 << 10, 128 << 10, 256 << 10, 512 << 10, DEFAULT)
#: Its content is read back, too.
WARM_UP = -1


def writer(size: int) -> Contestant:
    """Ours as people have it, but for one setting."""
    given = {**OURS.given, "kafka.batch.size": str(size)}
    return Contestant(f"batch.size={size}", "spark", OURS.title, DEFAULTS, given)


def plan(knobs: Knobs) -> Iterator[tuple[int, Case, int]]:
    """Round, case and ``batch.size`` of each write: a warm-up, then rounds, every other one from the end."""
    for round_ in (WARM_UP, *range(1, knobs.rounds + 1)):
        for case in knobs.chosen_cases():
            for size in SIZES if round_ % 2 else reversed(SIZES):
                yield round_, case, size


def measure(stage: Stage, root: Path, knobs: Knobs) -> list[Run]:
    """All of it, in one Spark session."""
    runs, loaded = [], None
    with stage.start("spark") as host:
        for round_, case, size in plan(knobs):
            count = knobs.records_of(case.size)
            if round_ == WARM_UP:
                count = min(count, knobs.warm_up_records)
            records = dataset(root, case.size, count, knobs.tasks, knobs.partitions, knobs.parquet)
            if records != loaded:
                stage.load(host, "spark", records)
                loaded = records
            run = stage.write(host, writer(size), case, records, round_)
            runs.append(run)
            cpu = f"client {run.client_cpu:.1f} s, broker {run.broker_cpu:.1f} s CPU"
            print(f"round {round_}, {case.name}, batch.size {size}: {run.seconds:.2f} s, {cpu}", file=sys.stderr)
    return runs


def page(runs: Sequence[Run], about: dict[str, str]) -> str:
    """Medians by case and ``batch.size``."""
    found, rows = summaries(runs), []
    for case in CASES:
        for size in SIZES:
            one = found.get((case.name, writer(size).key))
            if one is not None:
                rows.append([
                    case.name, f"{size:,}" + (" (default)" if size == DEFAULT else ""), f"{one.seconds:.2f}",
                    f"{one.fastest:.2f}–{one.slowest:.2f}", f"{one.client_cpu:.2f}", f"{one.broker_cpu:.2f}",
                    f"{one.log_bytes / 1e6:.0f}", f"{one.batch_bytes / 1e3:.0f}", str(one.runs),
                ])  # fmt: skip
    head = ("case", "batch.size", "s", "from–to", "client CPU s/M", "broker CPU s/M", "log MB", "batch KB", "runs")
    return "\n".join([
        "# The arrow writer by batch.size", "",
        "Made by `python -m bench.batch_size`: scope task, all other settings at their defaults; medians of",
        "interleaved rounds. How it is measured: docs/benchmarks.md.", "",
        *(f"- {what}: {about[what]}" for what in ("machine", "Python", "Java", "broker", "Spark", "topics")), "",
        *table(head, rows), "",
    ])  # fmt: skip


def main() -> None:
    """Raises what a write raises."""
    knobs = Knobs.of(os.environ)
    root, out = cache_root() / "bench", Path(knobs.folder)
    for folder in (root, out):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=root) as work,
        Broker(Path(work) / "broker", knobs.brokers) as broker,
    ):
        about = environment(knobs, jvm.built(root), jvm.spark_sink(root, version("pyspark")), broker.version)
        text = page(measure(Stage(broker, root, Path(work), knobs.partitions), root, knobs), about)
    (out / "BATCH_SIZE.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
