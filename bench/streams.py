"""Streaming queries: this package's sink beside Spark's own, at least once, and Flink's KafkaSink, exactly once.

``python -m bench.streams`` writes ``bench/STREAMS.md``: the time of a micro-batch and rows per second, each batch as
soon as the last one is done; and how old a row is when a read_committed reader has it, with a trigger, or a checkpoint,
each second.
Knobs: ``ROWS`` (``1000,100000,1000000`` in a batch), ``ROUNDS`` (3), ``BATCHES`` (10), ``SECONDS`` (30; 0: without the
ages), ``RATE`` (1000 rows a second) and ``OUT`` (the page).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from airflow_kafka_eos.sandbox.jars import cache_root
from bench import jvm
from bench.broker import Broker
from bench.cases import Knobs
from bench.environment import environment
from bench.host import Host
from bench.logcheck import Found, NotWhatWasWritten
from bench.report import table
from tests.postgresql import postgresql_server

#: Spark's own sink is what the others are measured by.
BASE = "kafka"
NAMES = {
    BASE: "Spark's own sink, at least once", "kafka_eos": "`kafka_eos`, exactly once",
    "foreachBatch": "`foreachBatch` with `exactly_once`", "flink": "Flink's KafkaSink, exactly once",
}  # fmt: skip
SINKS = (BASE, "kafka_eos", "foreachBatch")
PARTITIONS = 4
#: Behind the number, so that a value has about 100 bytes.
PAD = " " + "x" * 90
#: Of each query's batches the first ones are not counted: it compiles, imports, and opens its connections.
WARM_UP = 3
TRIGGER = "1 second"
PAGE = Path(__file__).with_name("STREAMS.md")
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass
class Figures:
    """Milliseconds of batches by rows and sink; rows a second by rows and sink, of each query; ages by sink, in ms."""

    batches: dict[tuple[int, str], list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    ages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def check(found: Sequence[Found], rows: int, sink: str) -> None:
    """
    :raises NotWhatWasWritten: fewer rows are committed than the batches had that were counted.
    """
    committed = sum(one.plain if sink == BASE else one.committed for one in found)
    if committed < rows:
        raise NotWhatWasWritten(f"{sink}: {committed} of {rows} rows are committed")


class Bench:
    """Everything that one measurement needs."""

    def __init__(self, broker: Broker, spark: Host, work: Path) -> None:
        self.broker = broker
        self.spark = spark
        self.figures = Figures()
        self._work = work

    def batches(self, rows: int, sink: str, count: int, *, is_warm_up: bool = False) -> None:
        """One query, from its start until so many batches are counted."""
        topic = self.broker.create_topic(PARTITIONS)
        given = self._given(sink, topic) | {"rows": rows, "batches": count + WARM_UP}
        self.spark.ask("settle")
        done = json.loads(self.spark.ask("batches", given)["progress"])
        self.broker.wait_ended(topic, PARTITIONS)
        check(self.broker.scan(topic, PARTITIONS), rows * (count + WARM_UP), sink)
        self.broker.delete_topic(topic)
        if not is_warm_up:
            self.figures.batches[rows, sink] += done[WARM_UP:]
        ms = statistics.median(one["ms"] for one in done[WARM_UP:])
        print(f"{rows:,} rows, {sink}: {ms:.0f} ms a batch", file=sys.stderr)

    def ages(self, sink: str, rate: int, seconds: int, flink: Host) -> None:
        """Rows by the clock, and a reader who looks at when they come."""
        topic = self.broker.create_topic(PARTITIONS)
        with reading(self.broker.bootstrap_servers, topic) as ages:
            if sink == "flink":
                given = {
                    "kafka.bootstrap.servers": self.broker.bootstrap_servers, "topic": topic, "naming": "POOLING",
                    "id": topic, "kafka.transaction.timeout.ms": "600000", "rate": rate, "seconds": seconds,
                    "checkpoint.ms": 1000,
                }  # fmt: skip
                flink.ask("run", given)
            else:
                given = self._given(sink, topic) | {"rate": rate, "batches": seconds, "trigger": TRIGGER}
                self.spark.ask("ages", given)
        self.broker.delete_topic(topic)
        # what was written while it began is older than it would be later on
        self.figures.ages[sink] += ages[len(ages) // 3 :]
        print(f"{sink}: {len(ages)} rows, {statistics.median(ages):.0f} ms old", file=sys.stderr)

    def _given(self, sink: str, topic: str) -> dict[str, object]:
        servers = self.broker.bootstrap_servers
        return {"sink": sink, "topic": topic, "servers": servers, "folder": self._work / topic, "pad": PAD}


@contextmanager
def reading(servers: str, topic: str) -> Iterator[list[float]]:
    """How old each row is, in milliseconds, when a read_committed reader has it; in the order of their coming."""
    found: list[float] = []
    over = threading.Event()

    def read() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": servers, "group.id": str(uuid4()), "isolation.level": "read_committed",
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        while not over.is_set():
            for message in consumer.consume(1000, 0.05):
                if message.error() is None:
                    found.append(time.time() * 1000 - int((message.value() or b"").split()[0]))
        consumer.close()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield found
    finally:
        time.sleep(1)
        over.set()
        reader.join()


def page(figures: Figures, about: dict[str, str]) -> str:
    """The report."""
    lines = ["# Streaming queries", "", "Made by `python -m bench.streams`; how: docs/benchmarks.md.", ""]
    lines += [f"- {what}: {about[what]}" for what in ("machine", "Python", "broker", "Flink", "Spark") if what in about]
    lines += ["", "## A micro-batch, each as soon as the last one is done", ""]
    rows = []
    for size in dict.fromkeys(size for size, _ in figures.batches):
        base = figures.batches[size, BASE]
        for sink in SINKS:
            if found := figures.batches.get((size, sink)):
                ms, of_base = _median(found), _median(base) if base else 0.0
                rows.append(
                    [
                        NAMES[sink], f"{size:,}", f"{ms:.0f}", f"{_quantile(found, 0.9):.0f}",
                        f"{_step(found, 'addBatch'):.0f}", f"{_rate(found):,.0f}",
                        f"{ms / of_base:.2f}" if of_base else "",
                        f"{_rate(found) / _rate(base):.2f}" if base else "", str(len(found)),
                    ]
                )  # fmt: skip
    head = (
        "sink", "rows", "ms", "90 % within", "of it writing", "rows/s", "time, times Spark's own", "rows/s, times",
        "batches",
    )  # fmt: skip
    lines += table(head, rows)
    if figures.ages:
        title = "## How old a row is when a read_committed reader has it, a trigger or a checkpoint each second"
        lines += ["", title, ""]
        rows = []
        for sink, ages in figures.ages.items():
            cuts = statistics.quantiles(ages, n=100)
            rows.append([NAMES[sink], *(f"{cuts[at - 1]:.0f}" for at in (50, 90, 99)), f"{len(ages):,}"])
        lines += table(("sink", "ms", "90 % within", "99 % within", "rows"), rows)
    return "\n".join(lines) + "\n"


def _median(found: Sequence[dict[str, float]]) -> float:
    return statistics.median(one["ms"] for one in found)


def _quantile(found: Sequence[dict[str, float]], part: float) -> float:
    ordered = sorted(one["ms"] for one in found)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def _step(found: Sequence[dict[str, float]], step: str) -> float:
    return statistics.median(one.get(f"{step}_ms", 0.0) for one in found)


def _rate(found: Sequence[dict[str, float]]) -> float:
    return sum(one["rows"] for one in found) / sum(one["ms"] for one in found) * 1000


def main() -> None:
    given = os.environ.get
    sizes = [int(size) for size in given("ROWS", "1000,100000,1000000").split(",")]
    rounds, count = int(given("ROUNDS", "3")), int(given("BATCHES", "10"))
    seconds, rate = int(given("SECONDS", "30")), int(given("RATE", "1000"))
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    java, sink_jars = jvm.built(root), jvm.spark_sink(root, version("pyspark"))
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=root) as folder,
        postgresql_server() as postgresql,
        Broker(Path(folder) / "broker") as broker,
    ):
        postgresql.run("CREATE DATABASE streams TEMPLATE template_ledger")
        environ = {
            "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONDONTWRITEBYTECODE": "", "AIRFLOW_KAFKA_EOS_LEDGER": postgresql.url("streams"),
        }  # fmt: skip
        command = [sys.executable, "-m", "bench.stream_host", str(sink_jars)]
        with (
            Host(command, root / "streams.log", environ) as spark,
            Host(jvm.flink_command(java), root / "flink.log") as flink,
        ):
            bench = Bench(broker, spark, Path(folder))
            for sink in SINKS:
                bench.batches(sizes[0], sink, count, is_warm_up=True)
            for round_ in range(rounds):
                for size in sizes:
                    for sink in SINKS if round_ % 2 == 0 else reversed(SINKS):
                        bench.batches(size, sink, count)
            for sink in (*SINKS, "flink") if seconds else ():
                bench.ages(sink, rate, seconds, flink)
        about = environment(Knobs(), java, sink_jars, broker.version)
    about["Spark"] = f"local[2], source rate-micro-batch, 2 tasks, values of about 100 bytes, {PARTITIONS} partitions"
    text = page(bench.figures, about)
    Path(given("OUT", str(PAGE))).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
