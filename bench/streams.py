"""Streaming queries: this package's sink beside Spark's own, at least once, and Flink's KafkaSink, exactly once.

``python -m bench.streams`` writes ``bench/STREAMS.md``: the time of a micro-batch and rows per second, each batch as
soon as the last one is done; the same in steady operation, with a source of so many rows a second and a trigger each
second; and how old a row is when a read_committed reader has it, with a trigger, or a checkpoint, each second.
Knobs: ``ROWS`` (``1000,100000,1000000`` in a batch; empty: without these), ``ROUNDS`` (3), ``BATCHES`` (10), ``STEADY``
(``1000,100000`` rows a second; empty: without it), ``WINDOW`` (15 seconds of each steady query), ``SECONDS`` (30; 0:
without the ages), ``RATE`` (1000 rows a second) and ``OUT`` (the page).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_kafka_eos.sandbox.jars import cache_root
from bench import jvm
from bench.broker import Broker
from bench.cases import Knobs
from bench.environment import environment
from bench.host import Host
from bench.logcheck import Found, NotWhatWasWritten
from bench.stream_report import ALL, BASE, FLOOR, SINKS, SOURCES, Figures, page
from tests.postgresql import postgresql_server

PARTITIONS = 4
#: Behind the number, so that a value has about 100 bytes.
PAD = " " + "x" * 90
#: Of each query's batches the first ones are not counted: it compiles, imports, and opens its connections.
WARM_UP = 3
TRIGGER = "1 second"
#: So many seconds' rows more are in the Kafka source than are timed: a query is stopped before it has read them all.
SPARE_SECONDS = 5
PAGE = Path(__file__).with_name("STREAMS.md")
REPOSITORY = Path(__file__).resolve().parent.parent


def came(found: Sequence[Found], sink: str) -> int:
    """How many rows a read_committed reader sees; Spark's own sink writes without transactions."""
    return sum(one.plain if sink == BASE else one.committed for one in found)


def check(found: Sequence[Found], rows: int, sink: str) -> None:
    """
    :raises NotWhatWasWritten: fewer rows are committed than the batches had that were counted.
    """
    committed = came(found, sink)
    if committed < rows:
        raise NotWhatWasWritten(f"{sink}: {committed} of {rows} rows are committed")


class Bench:
    """Everything that one measurement needs."""

    def __init__(self, broker: Broker, spark: Host, work: Path) -> None:
        self.broker = broker
        self.spark = spark
        self.figures = Figures()
        self._work = work
        self._filled: dict[int, str] = {}

    def batches(self, rows: int, sink: str, count: int, *, is_warm_up: bool = False) -> None:
        """One query, from its start until so many batches are counted."""
        topic = self.broker.create_topic(PARTITIONS)
        given = self._given(sink, topic) | {"rows": rows, "batches": count + WARM_UP}
        self.spark.ask("settle")
        done = json.loads(self.spark.ask("batches", given)["progress"])
        self.broker.wait_ended(topic, PARTITIONS)
        if sink != FLOOR:
            check(self.broker.scan(topic, PARTITIONS), rows * (count + WARM_UP), sink)
        self.broker.delete_topic(topic)
        if not is_warm_up:
            self.figures.batches[rows, sink] += done[WARM_UP:]
        ms = statistics.median(one["ms"] for one in done[WARM_UP:])
        print(f"{rows:,} rows, {sink}: {ms:.0f} ms a batch", file=sys.stderr)

    def steady(self, source: str, rate: int, sink: str, seconds: float, *, is_warm_up: bool = False) -> None:
        """A query with a trigger each second; what came through is counted in the log, not taken from Spark's word.

        Both looks come right behind the end of a batch, so that no part of another one is counted where a batch takes
        less than a second.
        """
        topic = self.broker.create_topic(PARTITIONS)
        given = self._given(sink, topic) | {
            "source": source, "rate": rate, "from": self._filled.get(rate, ""), "trigger": TRIGGER, "batches": WARM_UP,
        }  # fmt: skip
        self.spark.ask("settle")
        self.spark.ask("begin", given)
        begun, before = self._look(topic, sink)
        self.spark.ask("on", {"seconds": seconds})
        ended, after = self._look(topic, sink)
        done = json.loads(self.spark.ask("end")["progress"])
        self.broker.wait_ended(topic, PARTITIONS)
        check(self.broker.scan(topic, PARTITIONS), int(sum(one["rows"] for one in done)), sink)
        self.broker.delete_topic(topic)
        if not is_warm_up:
            figures = self.figures.steady[source, rate, sink]
            figures.batches += done[WARM_UP:]
            figures.rows += after - before
            figures.seconds += ended - begun
        ms, came_by = statistics.median(one["ms"] for one in done[WARM_UP:]), (after - before) / (ended - begun)
        print(f"{source}, {rate:,} rows/s, {sink}: {ms:.0f} ms a batch, {came_by:,.0f} rows/s", file=sys.stderr)

    def fill(self, rate: int, seconds: float) -> None:
        """The topic that steady queries read at this rate, each from its beginning; its partitions are filled evenly.

        :raises NotWhatWasWritten: not all of it is there.
        """
        topic = self._filled[rate] = self.broker.create_topic(PARTITIONS)
        rows = rate * (WARM_UP + math.ceil(seconds) + SPARE_SECONDS)
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "linger.ms": 100})
        for n in range(rows):
            while True:
                try:
                    producer.produce(topic, f"{n}{PAD}", str(n), n % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        check(self.broker.scan(topic, PARTITIONS), rows, BASE)

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

    def _look(self, topic: str, sink: str) -> tuple[float, int]:
        """When it was, and how many rows a reader sees."""
        self.broker.wait_ended(topic, PARTITIONS)
        return time.monotonic(), came(self.broker.scan(topic, PARTITIONS), sink)

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


def spark_host(jars: Path, log: Path, ledger: str) -> Host:
    """The process of :mod:`bench.stream_host`.

    :param jars: what :func:`bench.jvm.spark_sink` has fetched.
    :param ledger: its URL.
    """
    environ = {
        "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONDONTWRITEBYTECODE": "", "AIRFLOW_KAFKA_EOS_LEDGER": ledger,
    }  # fmt: skip
    return Host([sys.executable, "-m", "bench.stream_host", str(jars)], log, environ)


def numbers(text: str) -> list[int]:
    """A knob with a list; empty, or 0, is none."""
    return [int(one) for one in text.split(",") if int(one or 0)]


def orders(sinks: Sequence[str], rounds: int) -> Iterator[Sequence[str]]:
    """The sinks of each round; every other one goes from the end."""
    for round_ in range(rounds):
        yield sinks if round_ % 2 == 0 else sinks[::-1]


def main() -> None:
    given = os.environ.get
    sizes, rates = numbers(given("ROWS", "1000,100000,1000000")), numbers(given("STEADY", "1000,100000"))
    rounds, count, window = int(given("ROUNDS", "3")), int(given("BATCHES", "10")), float(given("WINDOW", "15"))
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
        with (
            spark_host(sink_jars, root / "streams.log", postgresql.url("streams")) as spark,
            Host(jvm.flink_command(java), root / "flink.log") as flink,
        ):
            bench = Bench(broker, spark, Path(folder))
            for sink in ALL if sizes else ():
                bench.batches(sizes[0], sink, count, is_warm_up=True)
            for sinks in orders(ALL, rounds):
                for size in sizes:
                    for sink in sinks:
                        bench.batches(size, sink, count)
            for steady_rate in rates:
                bench.fill(steady_rate, window)
            for source in SOURCES if rates else ():
                for sink in SINKS:
                    bench.steady(source, max(rates), sink, 1, is_warm_up=True)
            for sinks in orders(SINKS, rounds):
                for source in SOURCES:
                    for steady_rate in rates:
                        for sink in sinks:
                            bench.steady(source, steady_rate, sink, window)
            for sink in (*SINKS, "flink") if seconds else ():
                bench.ages(sink, rate, seconds, flink)
        about = environment(Knobs(), java, sink_jars, broker.version)
    about["Spark"] = (
        f"local[2], sources rate-micro-batch and rate with 2 tasks, kafka with {PARTITIONS}; values of about 100 "
        f"bytes, {PARTITIONS} partitions"
    )
    text = page(bench.figures, about)
    Path(given("OUT", str(PAGE))).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
