"""What a ledger costs that has many loads, and what a load costs that has many transactions.

``python -m bench.ledger`` writes ``bench/LEDGER.md``. ``LOADS`` (``1000,10000,100000``; empty: without that part),
``TRANSACTIONS`` (``10000``; 0: without that part), ``POSTGRESQL`` (0: SQLite alone), ``KAFKA`` (``4.4.0``) and
``OUT`` (a folder) are its knobs. The PostgreSQL is that of the tests.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.interface import TopicLimits, WriteTarget
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.kafka.records.digest import ALGORITHM
from airflow_kafka_eos.ledger import migrate
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry, dump, load
from airflow_kafka_eos.protocol.cleanup.namespace import find
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.metrics import measure
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.protocol.stages.visible import arrival_of
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from bench.ledger_rows import NAMESPACE, fill, identity, owner
from bench.report import table

TOPIC, OWNER = "bench-ledger", "bench/run#group=load"
#: Kafka partitions of the load with many transactions; each of its Spark tasks writes into so many of them.
PARTITIONS, PARTITIONS_OF_A_TASK = 64, 4
_ROUNDS = 5
_TIMEOUT_MS = 840_000
_PROCESSES = 2
_numbers = count(1)


@dataclass
class Clock:
    """Seconds by the name of what took them, in order."""

    seconds: dict[str, list[float]]

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds.setdefault(what, []).append(time.perf_counter() - began)

    def medians(self) -> dict[str, float]:
        return {what: statistics.median(found) for what, found in self.seconds.items()}


def of_many_loads(kafka: LocalKafka, url: str, loads: int) -> dict[str, float]:
    """Seconds that steps, commands and the page take, with so many loads in the ledger. Medians of some rounds."""
    migrate.upgrade(url)
    with Ledger.open(url) as ledger:
        fill(ledger, loads, topic=TOPIC)
    clock = Clock({})
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with connect(settings, url, NAMESPACE) as session:
        for number in range(_ROUNDS + 1):
            _commands(clock, url)
            _page(clock, url)
            _steps(clock, session, settings)
            if not number:
                clock.seconds.clear()  # what is imported, and read from the disk
    return clock.medians()


def _commands(clock: Clock, url: str) -> None:
    from airflow_kafka_eos.cli import main
    from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE

    os.environ[LEDGER_VARIABLE] = url
    one = identity(7)
    for what, words in (
        ("list", ["list"]),
        ("list by state", ["list", "--state", "IN_DOUBT"]),
        ("show", ["show", one.name, one.key, "--namespace", NAMESPACE]),
    ):
        with clock(what), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert main(["loads", *words]) == 0


def _page(clock: Clock, url: str) -> None:
    """What its routes ask of the ledger, and make of it; not what they ask of Airflow."""
    from airflow_kafka_eos.plugin import dags, reads, views

    everybody, nobody = _access(True), _access(False)
    reads._url = lambda conn_id: url
    place = dags.Place("bench", "bench")
    dags.load_tasks = lambda *_: [dags.LoadTask("load.begin", "{{ a_template }}", place)]
    dags.begun_loads = lambda *_: {str(identity(7))}
    dag_id, _, run_id = owner(7).partition("#")[0].partition("/")
    with clock("page, all loads"):
        found = reads.find_loads(everybody, reads.Selection())
        assert views.loads(((f.row, f.newest, f.note) for f in found.loads), more=found.more)["loads"]
    with clock("page, for who may see none"):
        assert reads.find_loads(nobody, reads.Selection()).loads == []
    with clock("page, one run"):
        (one,) = reads.find_loads(everybody, reads.Selection(dag_id, run_id)).loads
    with clock("page, one load"):
        reads.show(everybody, one)


def _steps(clock: Clock, session: Session, settings: KafkaSettings) -> None:
    mine = LoadIdentity(NAMESPACE, identity(7).name, f"mine-{time.time_ns()}")
    with clock("begin"):
        begin(session, mine, owner=OWNER)
        row = submit(session, mine, owner=OWNER)
    manifest = _manifest(session, reference(session, row), [_write(settings, reference(session, row), 0, 1, 1)])
    with clock("prepared"):
        record_prepared(session, manifest)
    with clock("decide"):
        decide(session, manifest, Conditions(), owner=OWNER, margin_s=10)
    with clock("commit"):
        commit(session, mine, deadline_s=60, poll_s=0.01)
    other = LoadIdentity(NAMESPACE, identity(7).name, f"other-{time.time_ns()}")
    begin(session, other, owner=OWNER)
    ref = reference(session, submit(session, other, owner=OWNER))
    record_prepared(session, _manifest(session, ref, [_write(settings, ref, 0, 1, 1)]))
    with clock("sweep"):
        assert len(sweep(session, other, up_to=1, by="bench").aborted) == 1
    with clock("maintenance: find, measure"):
        find(session, abandoned_after=timedelta(days=1))
        measure(session)
    while not sweep(session, other, up_to=1, by="bench").is_quiet:
        time.sleep(0.02)
    session.ledger.record_swept(other, 1)


def _write(settings: KafkaSettings, ref: AttemptRef, task: int, partitions: int, each: int) -> ManifestEntry:
    """What a Spark task does, of ``each`` records into each of some Kafka partitions."""
    writer = make_writer(
        "arrow",
        settings,
        WriteTarget(
            ref.task_id(task, task),
            {TOPIC: TopicLimits(PARTITIONS, 1_000_000)},
            TOPIC,
            _TIMEOUT_MS,
            int(time.time() * 1000) + 3_600_000,
        ),
    )
    try:
        writer.open()
        places = pa.array([(task + n // each) % PARTITIONS for n in range(partitions * each)], pa.int32())
        values = pa.array([b"v" * 100] * len(places))
        writer.write(pa.RecordBatch.from_pydict({"key": values, "value": values, "partition": places}))
        return ManifestEntry(task, *writer.prepare())
    finally:
        writer.close()


def _write_some(bootstrap: str, ref: AttemptRef, tasks: Iterable[int]) -> list[ManifestEntry]:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": bootstrap})
    return [_write(settings, ref, task, PARTITIONS_OF_A_TASK, 1) for task in tasks]


def _manifest(session: Session, ref: AttemptRef, entries: Iterable[ManifestEntry]) -> Manifest:
    return Manifest(
        attempt=ref,
        created_at="2026-01-01T00:00:00+00:00",
        writer="arrow",
        scope=TransactionScope.TASK,
        two_phase_commit=False,
        digest_algorithm=ALGORITHM,
        transaction_timeout_ms=_TIMEOUT_MS,
        topics=session.partitions.topic_info([TOPIC]),
        entries=tuple(entries),
    )


def of_many_transactions(kafka: LocalKafka, url: str, transactions: int) -> dict[str, float]:
    """Seconds that each step of one load takes which so many Spark tasks write, one transaction each."""
    migrate.upgrade(url)
    clock = Clock({})
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    mine = LoadIdentity(NAMESPACE, "many.load", f"{transactions}")
    with connect(settings, url, NAMESPACE) as session, ProcessPoolExecutor(_PROCESSES) as pool:
        with clock("begin"):
            begin(session, mine, owner=OWNER)
            ref = reference(session, submit(session, mine, owner=OWNER))
        with clock("writing"):
            parts = [range(n, transactions, _PROCESSES * 8) for n in range(_PROCESSES * 8)]
            many = len(parts)
            written = pool.map(_write_some, [kafka.bootstrap_servers] * many, [ref] * many, parts)
            entries = sorted((e for part in written for e in part), key=lambda e: e.spark_partition)
        with clock("manifest: made, written as text, read"):
            manifest = load(dump(_manifest(session, ref, entries)), ref)
        with clock("prepared"):
            record_prepared(session, manifest)
        with clock("decide"):
            decide(session, manifest, Conditions(), owner=OWNER, margin_s=60)
        with clock("commit"):
            commit(session, mine, deadline_s=600)
        with clock("loaded: what arrived"):
            assert arrival_of(session, mine)["records"] == transactions * PARTITIONS_OF_A_TASK
        with clock("a second commit"):
            commit(session, mine, deadline_s=60)
        with clock("a sweep behind it"):
            sweep(session, mine, up_to=1, by="bench")
        killed = LoadIdentity(NAMESPACE, "many.load", "killed")
        begin(session, killed, owner=OWNER)
        of_killed = reference(session, submit(session, killed, owner=OWNER))
        left = max(1, transactions // 10)
        parts = [range(n, left, many) for n in range(many)]
        list(pool.map(_write_some, [kafka.bootstrap_servers] * many, [of_killed] * many, parts))
        with clock(f"a sweep of {left:,} that a killed prepare has left"):
            assert len(sweep(session, killed, up_to=1, by="bench").aborted) == left
        _page_of(clock, url, mine)
    return clock.medians()


def _page_of(clock: Clock, url: str, mine: LoadIdentity) -> None:
    from airflow_kafka_eos.plugin import reads

    reads._url = lambda conn_id: url
    with clock("page, one load"):
        found = reads.find_load(_access(True), reads.Selection(), mine)
        assert found is not None
        reads.show(_access(True), found)


def _access(may: bool) -> Any:
    from airflow_kafka_eos.plugin.dags import Access

    class Fixed(Access):
        def may(self, method: str, dag_id: str | None) -> bool:
            return may

    return Fixed(None)


@contextmanager
def databases(folder: Path, *, postgresql: bool) -> Iterator[dict[str, Callable[[], str]]]:
    """By its name, what makes an empty database and tells its URL."""
    with ExitStack() as stack:
        made = {"SQLite": lambda: f"sqlite:///{folder}/ledger-{next(_numbers)}.db"}
        if postgresql:
            from tests.postgresql import postgresql_server

            server = stack.enter_context(postgresql_server())

            def new() -> str:
                name = f"bench_{next(_numbers)}"
                server.run(f"CREATE DATABASE {name}")
                return server.url(name)

            made["PostgreSQL"] = new
        yield made


def _rows(by_column: dict[str, dict[str, float]]) -> list[list[str]]:
    names = list(dict.fromkeys(name for found in by_column.values() for name in found))
    return [[name, *(f"{found[name]:.3f}" for found in by_column.values())] for name in names]


def report(kafka: LocalKafka, made: dict[str, Callable[[], str]], loads: list[int], transactions: int) -> str:
    """The page, measured on a running broker."""
    kafka.create_topic(TOPIC, partitions=PARTITIONS)
    lines = [
        "# What a large ledger costs", "",
        f"Made by `python -m bench.ledger`: Kafka {kafka.version}, one broker, {os.cpu_count()} cores for everything.",
    ]  # fmt: skip
    grown: dict[str, dict[str, float]] = {}
    for name, new in made.items():
        for number in loads:
            print(f"{name}, {number} loads", file=sys.stderr)
            grown[f"{name}, {number:,}"] = of_many_loads(kafka, new(), number)
    if grown:
        lines += [
            "", "## Many loads", "",
            f"Seconds, medians of {_ROUNDS}, with so many loads in the ledger. Commands without the start of Python;",
            "steps are of a load with one transaction of one record.", "",
            *table(["s", *grown], _rows(grown)),
        ]  # fmt: skip
    if transactions:
        tasks = {}
        for name, new in made.items():
            print(f"{name}, {transactions} transactions", file=sys.stderr)
            tasks[name] = of_many_transactions(kafka, new(), transactions)
        ratio = [_ratio(found) for found in tasks.values()]
        lines += [
            "", "## Many transactions", "",
            f"Seconds of one load that {transactions:,} Spark tasks write, one transaction each into",
            f"{PARTITIONS_OF_A_TASK} of {PARTITIONS} Kafka partitions; the package's writers in {_PROCESSES}",
            "processes, without Spark.", "",
            *table(["s", *tasks], [*_rows(tasks), ["begin to COMMITTED, times the writing", *ratio]]),
        ]  # fmt: skip
    return "\n".join([*lines, ""])


def _ratio(found: dict[str, float]) -> str:
    steps = ("begin", "writing", "manifest: made, written as text, read", "prepared", "decide", "commit")
    return f"{sum(found[step] for step in steps) / found['writing']:.2f}"


def main() -> None:
    loads = [int(n) for n in os.environ.get("LOADS", "1000,10000,100000").split(",") if n]
    transactions = int(os.environ.get("TRANSACTIONS", "10000"))
    with (
        tempfile.TemporaryDirectory(prefix="bench-ledger-") as folder,
        LocalKafka(version=os.environ.get("KAFKA", "4.4.0")) as kafka,
        databases(Path(folder), postgresql=os.environ.get("POSTGRESQL", "1") != "0") as made,
    ):
        os.environ["AIRFLOW_HOME"] = folder
        page = report(kafka, made, loads, transactions)
    (Path(os.environ.get("OUT", Path(__file__).parent)) / "LEDGER.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
