"""``engine="arrow"`` beside Spark's tasks: the same rows into the same broker, in turn; its memory; its values.

``python -m bench.arrow_engine`` writes ``bench/ARROW.md``. ``RECORDS`` (``1000000,10000000``), ``ROUNDS`` (5),
``MEMORY`` (millions of records: ``1,5,20``; empty: without that part), ``VALUES`` (0: without that part),
``PARTITIONS`` (4) and ``OUT`` (a folder) are its knobs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro.schema import expand_schema

from airflow_kafka_eos.arrow.json_text import json_texts
from airflow_kafka_eos.arrow.kinds import in_form, struct_of
from airflow_kafka_eos.sandbox.jars import cache_root
from airflow_kafka_eos.spark.formats.avro import avro_schema
from airflow_kafka_eos.spark.formats.avro import plan as plan_avro
from airflow_kafka_eos.spark.formats.avro_encode import encode
from airflow_kafka_eos.spark.formats.kinds import Kind
from bench import jvm
from bench.broker import Broker
from bench.cases import DEFAULTS, Case, Contestant, Knobs
from bench.data import Dataset, dataset
from bench.environment import environment
from bench.host import Host
from bench.measure import Stage
from bench.report import table
from bench.stats import Run, Summary, summarise

_CASE = Case("small", "none")
_OURS = {"writer": "kafka_eos", "option.writer": "arrow", "option.transaction.scope": "task"}
SPARK = Contestant("spark", "spark", "Spark, two tasks", DEFAULTS, _OURS)
ENGINE = Contestant("engine", "arrow", 'engine="arrow"', DEFAULTS, _OURS | {"way": "engine"})
THREADS = Contestant("threads", "arrow", "two writers, in two threads", DEFAULTS, _OURS | {"way": "threads"})
PROCESSES = Contestant("processes", "arrow", "two writers, in two processes", DEFAULTS, _OURS | {"way": "processes"})
CONTESTANTS = (SPARK, ENGINE, THREADS, PROCESSES)
WARM_UP = -1
FILES = 2
_MILLION = 1_000_000
#: Rows that values are made of, and how often.
_ROWS, _TIMES = 50_000, 9


def plan(records: Sequence[int], rounds: int) -> Iterator[tuple[int, int, Contestant]]:
    """Round, number of records and who writes them: a warm-up, then rounds, every other one from the end."""
    for round_ in (WARM_UP, *range(1, rounds + 1)):
        for count in records[:1] if round_ == WARM_UP else records:
            for contestant in CONTESTANTS if round_ % 2 else reversed(CONTESTANTS):
                yield round_, count, contestant


def measure(stage: Stage, root: Path, records: Sequence[int], rounds: int) -> list[Run]:
    """Everybody in a warm process of their own."""
    runs: list[Run] = []
    with ExitStack() as stack:
        hosts: dict[str, Host] = {}
        loaded: dict[str, Dataset] = {}
        for round_, count, contestant in plan(records, rounds):
            kind, made = contestant.host, dataset(root, "small", count, FILES, stage.partitions)
            if kind not in hosts:
                hosts[kind] = stack.enter_context(stage.start(kind))
            if loaded.get(kind) != made:
                stage.load(hosts[kind], kind, made)
                loaded[kind] = made
            run = stage.write(hosts[kind], contestant, _CASE, made, round_)
            runs.append(run)
            said = f"{run.seconds:.2f} s, client {run.client_cpu:.2f} s, broker {run.broker_cpu:.2f} s CPU"
            print(f"round {round_}, {count:,}, {contestant.key}: {said}", file=sys.stderr)
    return [run for run in runs if run.round > 0]


@dataclass(frozen=True)
class Peak:
    """The most memory of a fresh process that has written so many records, in MiB."""

    millions: int
    generator: int
    parquet: int


def peaks(stage: Stage, root: Path, work: Path, millions: Sequence[int], rows: int = _MILLION) -> list[Peak]:
    """Out of a generator of batches, and out of one Parquet file by a pyarrow dataset; both have the same million rows
    over and over."""
    of_a_million = dataset(root, "small", rows, FILES, stage.partitions)
    found = []
    for count in millions:
        long = work / "long.parquet"
        with pq.ParquetWriter(long, pq.read_schema(of_a_million.parquet_files[0]), compression="zstd") as parquet:
            for _ in range(count):
                for file in of_a_million.parquet_files:
                    parquet.write_table(pq.read_table(file))
        by_generator = _peak(stage, of_a_million.parquet_files, count * rows, {"times": str(count)})
        by_parquet = _peak(stage, [long], count * rows, {})
        found.append(Peak(count, by_generator, by_parquet))
        print(f"{count} million: {found[-1]}", file=sys.stderr)
    return found


def _peak(stage: Stage, files: Sequence[Path], records: int, more: dict[str, str]) -> int:
    contestant = replace(ENGINE, given={**ENGINE.given, **more})
    ref, topic = stage.attempt(contestant), stage.broker.create_topic(stage.partitions)
    try:
        with stage.start("arrow") as host:
            host.ask("load", {"files": ",".join(map(str, files))})
            host.ask("run", stage.given(contestant, _CASE, topic, ref))
            if stage.manifest(ref).records != records:
                raise ValueError(f"{stage.manifest(ref).records} of {records} records")
            return int(host.ask("peak")["kib"]) // 1024
    finally:
        stage.broker.delete_topic(topic)


def values() -> list[list[str]]:
    """How many rows of typed columns become values, on one core: rows of the table."""
    rows = []
    for what, made in (("seven plain columns", plain_columns()), ("with a list, a map and a struct", nested_columns())):
        kind = struct_of(made.schema)
        node = plan_avro(kind, expand_schema(json.loads(avro_schema(kind, "bench.Value"))))
        column = pa.StructArray.from_arrays(made.columns, names=made.schema.names)
        for name, work in (
            ("json", partial(json_texts, kind=kind)),
            ("confluent-avro", partial(encode, node=node, prefix=b"\0" * 5)),
        ):
            seconds, size = _timed(partial(_value, work, column, kind))
            rate = _ROWS / seconds / 1e6
            rows.append([f"{name}, {what}", f"{size / _ROWS:.0f}", f"{rate:.2f}", f"{size / seconds / 1e6:.0f}"])
    return rows


def _value(work: Callable[[pa.StructArray], pa.BinaryArray], column: pa.StructArray, kind: Kind) -> pa.BinaryArray:
    return work(in_form(column, kind, ""))


def _timed(work: Callable[[], pa.BinaryArray]) -> tuple[float, int]:
    seconds = []
    for _ in range(_TIMES):
        begun = time.process_time()
        made = work()
        seconds.append(time.process_time() - begun)
    size = int(np.diff(np.frombuffer(made.buffers()[1], np.int32)[: len(made) + 1]).sum())
    return statistics.median(seconds[1:]), size


def plain_columns() -> pa.RecordBatch:
    """A long, two texts, a double, a decimal, a date that may be null, a time."""
    random = np.random.default_rng(1)
    numbers = np.arange(_ROWS)
    at = 1_790_000_000_000_000 + np.cumsum(random.integers(0, 10**6, _ROWS))
    return pa.record_batch({
        "id": pa.array(numbers),
        "name": pa.array([f"customer {n}" for n in random.integers(0, 10**6, _ROWS)]),
        "country": pa.array(["DE", "FR", "NL", "PL"]).take(pa.array(random.integers(0, 4, _ROWS))),
        "ratio": pa.array(random.random(_ROWS) * 1000),
        "amount": pa.array([Decimal(n).scaleb(-2) for n in random.integers(0, 10**7, _ROWS).tolist()]),
        "day": pa.array(numbers % 20_000, pa.int32(), mask=numbers % 7 == 0).cast(pa.date32()),
        "at": pa.array(at, pa.timestamp("us", "UTC")),
    })  # fmt: skip


def nested_columns() -> pa.RecordBatch:
    """The same, and columns that have others in them."""
    plain, numbers = plain_columns(), range(_ROWS)
    tags = pa.array([[f"t{n % 7}", "x"][: n % 3] for n in numbers])
    counts = pa.array([[("a", n), ("b", None)][: n % 3] for n in numbers], pa.map_(pa.string(), pa.int64()))
    place = pa.array([None if n % 9 == 0 else {"street": f"s {n}", "number": n % 200} for n in numbers])
    return pa.RecordBatch.from_arrays(
        [*plain.columns, tags, counts, place], [*plain.schema.names, "tags", "counts", "place"]
    )


def page(
    runs: Sequence[Run], found: Sequence[Peak], made: Sequence[Sequence[str]], about: dict[str, str], load: str
) -> str:
    """All of it. Pure."""
    lines = [
        '# engine="arrow"', "",
        "Made by `python -m bench.arrow_engine`; how, and how to read it: docs/benchmarks.md.", "",
        *(f"- {what}: {about[what]}" for what in ("machine", "Python", "Java", "broker", "Spark")),
        f"- load of the machine when it began: {load}",
    ]  # fmt: skip
    for count in sorted({run.records for run in runs}):
        by = {c.key: summarise([r for r in runs if (r.records, r.contestant) == (count, c.key)]) for c in CONTESTANTS}
        engine, spark, threads, processes = (by[c.key] for c in (ENGINE, SPARK, THREADS, PROCESSES))
        size = next(run.bytes for run in runs if run.records == count) / count
        lines += ["", f"## {count:,} records of {size:.0f} bytes, from two Parquet files", "", *_rows(by)]
        lines += [
            "", f'Client CPU of `engine="arrow"`: {engine.client_cpu / spark.client_cpu:.2f} × '
            f"that of Spark's tasks. Two writers are {engine.seconds / threads.seconds:.2f} × as fast as one in "
            f"threads, {engine.seconds / processes.seconds:.2f} × in processes.",
        ]  # fmt: skip
    if found:
        rows = [[f"{one.millions}", f"{one.generator}", f"{one.parquet}"] for one in found]
        lines += [
            "", "## Memory", "",
            "The most that a fresh process has had, MiB: out of a generator of batches, and out of one Parquet file by",
            "a pyarrow dataset.", "", *table(["million records", "generator", "one Parquet file"], rows),
        ]  # fmt: skip
    if made:
        lines += [
            "", "## Values", "",
            "Arrow columns to values, on one core, nothing else; `string` and `raw` take columns as they are.", "",
            *table(["value_format", "bytes", "M rows/s", "MB/s"], made),
        ]  # fmt: skip
    return "\n".join([*lines, ""])


def _rows(by: dict[str, Summary]) -> list[str]:
    head = (
        "", "s", "from–to", "M records/s", "client CPU s/M", "M records per s of client CPU", "broker CPU s/M", "runs",
    )  # fmt: skip
    titles = {c.key: c.title for c in CONTESTANTS}
    return table(head, [
        [
            titles[who], f"{one.seconds:.2f}", f"{one.fastest:.2f}–{one.slowest:.2f}", f"{one.rate:.2f}",
            f"{one.client_cpu:.2f}", f"{1 / one.client_cpu:.2f}", f"{one.broker_cpu:.2f}", str(one.runs),
        ]
        for who, one in by.items()
    ])  # fmt: skip


def main() -> None:
    """Raises what a write raises."""
    records = [int(n) for n in os.environ.get("RECORDS", "1000000,10000000").split(",")]
    millions = [int(n) for n in os.environ.get("MEMORY", "1,5,20").split(",") if n]
    knobs = Knobs(rounds=int(os.environ.get("ROUNDS", "5")), partitions=int(os.environ.get("PARTITIONS", "4")))
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg()) + f", {datetime.now(UTC):%Y-%m-%d}"
    made = values() if os.environ.get("VALUES", "1") != "0" else []
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=root) as work,
        Broker(Path(work) / "broker", knobs.brokers) as broker,
    ):
        stage = Stage(broker, root, Path(work), knobs.partitions)
        about = environment(knobs, jvm.built(root), jvm.spark_sink(root, version("pyspark")), broker.version)
        runs = measure(stage, root, records, knobs.rounds)
        text = page(runs, peaks(stage, root, Path(work), millions), made, about, load)
    (Path(os.environ.get("OUT", Path(__file__).parent)) / "ARROW.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
