"""Loads with a cursor, each in a process of its own that may be killed at any of its steps.

A line of JSON on stdin is a list of orders, which run at the same time; the answer is how each ended, and how many
places it has passed at which it could have been killed. This process imports all once, and does nothing but fork.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_kafka_eos.arrow.engine import prepare
from airflow_kafka_eos.arrow.stream import Bounds
from airflow_kafka_eos.cursor import Cursor
from airflow_kafka_eos.kafka.admin import offset_ranges
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.read_range import SCHEMA, read_range
from airflow_kafka_eos.ledger.database import Database
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.protocol.stages.take_range import Wanted, check_range, record_chosen, take_range
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.crashes.victim import die

ROOT = Path(__file__).parents[2]
NAMESPACE = "test"


@dataclass(frozen=True)
class Order:
    """:param kill_at: it dies at the so-manyth place where it can; 0: it does not.
    :param job_chooses: where the range ends is the job's word, not the source's.
    :param pause_s: it does not die there, but stands still for so long.
    :param named: since and until of a range by name; None: the cursor's own.
    """

    servers: str
    ledger_url: str
    folder: str
    source: str
    target: str
    name: str
    key: str
    kill_at: int = 0
    job_chooses: bool = False
    pause_s: float = 0.0
    named: tuple[Any, Any] | None = None

    @property
    def load(self) -> LoadIdentity:
        return LoadIdentity(NAMESPACE, self.name, self.key)


class Ended(NamedTuple):
    killed: bool
    places: int
    error: str


@dataclass
class Offsets:
    """The offsets of one topic, without an Airflow connection."""

    session: Session
    topic: str

    def bounds(self, since: Any) -> tuple[Any, Any]:
        return offset_ranges.bounds(self.session.partitions, [self.topic], since)

    def check(self, since: Any, until: Any) -> None:
        offset_ranges.check(self.session.partitions, since, until)


def run(order: Order) -> None:
    """A load, as Airflow's tasks have it; each step goes on with whatever is there."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": order.servers})
    store = ManifestStore(order.folder)
    with connect(settings, order.ledger_url, NAMESPACE) as session:
        row = begin(session, order.load, owner=f"dag/{order.key}")
        if row.verdict is not Verdict.COMMIT:
            if row.is_prepared:
                manifest = store.read(reference(session, row))
            else:
                manifest = prepared(order, session, settings, store)
            decide(session, manifest, Conditions(), owner=f"dag/{order.key}", margin_s=5)
        commit(session, order.load, deadline_s=60)


def prepared(order: Order, session: Session, settings: KafkaSettings, store: ManifestStore) -> Manifest:
    offsets = Offsets(session, order.source)
    named = None if order.named is None else (order.named[0], order.named[1])
    wanted = Wanted(Cursor(source=None if order.job_chooses else offsets), named)
    check_range(session, order.load, wanted)
    deadline = int(time.time() * 1000) + 120_000
    row = submit(session, order.load, owner=f"dag/{order.key}", deadline_ms=deadline)
    ref = reference(session, row)

    found = take_range(
        session, row, wanted, chosen=lambda n: store.until(replace(ref, attempt=n))
    )
    options = WriteOptions(ref, store.base, (order.target,), 60_000, deadline)
    spec = ApplicationSpec(options, job="jobs/copy.py", range={"since": found.since, "until": found.until})

    def job(since: Any, until: Any) -> Any:
        # what begins with nothing, and partitions that are new, begin with their oldest record
        begin, newest = offsets.bounds(since)
        ends = newest if until is None else until
        stream = pa.RecordBatchReader.from_batches(SCHEMA, read_range(settings, begin, ends))
        return (stream, ends) if until is None else stream

    prepare(spec, settings, store, job, bounds=Bounds(2**26), stop=threading.Event(), say=lambda line: None)
    manifest = store.read(ref)
    record_chosen(session, order.load, row.number, lambda: store.until(ref))
    record_prepared(session, manifest, writers_left=store.writers_left(manifest))
    return manifest


class Places:
    """Counts where it may die, and dies at one of them: before and behind each request and note, and on all three sides
    of each database transaction."""

    def __init__(self, kill_at: int, count: Path, pause_s: float = 0.0) -> None:
        self._kill_at, self._count, self.passed, self._pause_s = kill_at, count, 0, pause_s

    def passing(self) -> None:
        self.passed += 1
        if self.passed == self._kill_at and self._pause_s:
            _stand_still(self._pause_s)
        elif self.passed == self._kill_at:
            self._count.write_text(str(self.passed))
            die()

    def plant(self) -> None:
        write = Database.write

        def written(database: Database, work: Callable[[Any], Any]) -> Any:
            def whole(connection: Any) -> Any:
                answer = work(connection)
                self.passing()
                return answer

            self.passing()
            answer = write(database, whole)
            self.passing()
            return answer

        Database.write = written  # type: ignore[assignment, method-assign]
        for owner, name in ((Wire, "_send"), (ManifestStore, "_create")):
            setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def around(*given: Any, **named: Any) -> Any:
            self.passing()
            answer = original(*given, **named)
            self.passing()
            return answer

        return around


def _stand_still(seconds: float) -> None:
    """All of the process, by SIGSTOP; somebody wakes it up."""
    stopped = os.getpid()
    waker = os.fork()
    if waker == 0:
        time.sleep(seconds)
        os.kill(stopped, signal.SIGCONT)
        os._exit(0)
    os.kill(stopped, signal.SIGSTOP)
    os.waitpid(waker, 0)


class Victims:
    """The process that forks them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, *orders: Order) -> list[Ended]:
        """Run them at the same time, each to its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps([asdict(order) for order in orders]) + "\n")
        stdin.flush()
        return [Ended(*one) for one in json.loads(stdout.readline())]


@contextmanager
def victims() -> Iterator[Victims]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crashes.cursor_victim"], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
    )
    try:
        yield Victims(process)
    finally:
        process.kill()
        process.wait()


def _serve() -> None:
    for line in sys.stdin:
        orders = [Order(**one) for one in json.loads(line)]
        pids = [_fork(order, n) for n, order in enumerate(orders)]
        ended = [_ended(order, n, pid) for n, (order, pid) in enumerate(zip(orders, pids, strict=True))]
        print(json.dumps(ended), flush=True)


def _files(order: Order, n: int) -> Sequence[Path]:
    return Path(order.folder, f"places-{n}"), Path(order.folder, f"error-{n}")


def _fork(order: Order, n: int) -> int:
    count, error = _files(order, n)
    count.write_text("0")
    error.write_text("")
    pid = os.fork()
    if pid:
        return pid
    places = Places(order.kill_at, count, order.pause_s)
    places.plant()
    try:
        run(order)
    except BaseException:
        error.write_text(traceback.format_exc())
    count.write_text(str(places.passed))
    os._exit(0)


def _ended(order: Order, n: int, pid: int) -> Ended:
    _, status = os.waitpid(pid, 0)
    count, error = _files(order, n)
    return Ended(os.WIFSIGNALED(status), int(count.read_text()), error.read_text())


if __name__ == "__main__":
    _serve()
