"""What Spark does with a query, in forks of one process that has imported everything: a life costs no JVM.

As the rest of the campaign does without Spark (``tests/faults/sparking.py``), most stream worlds do. What is the
package's is real: data source, writers, ledger, checkpoint as it is read. What is Spark's is done here, as Spark 4.2
does it (:mod:`airflow_kafka_eos.streams.source`): a driver plans batches into a checkpoint; one Python process makes a
batch's writer, others run its tasks, another one ends it; each is used again for the next batch, and goes on with what
it is at when the driver is gone. A share of the worlds runs by Spark itself.

python -m tests.faults.worlds.forked_engine SOCKET
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tests.faults.worlds.stream_steps import FOLDER, LIFE
from tests.faults.zygote import forking

#: Spark's spark.task.maxFailures, of local[n,2]
MOST_FAILURES = 2
POLL_S = 0.02
START_S, COMMAND_S = 120.0, 180.0


class QueryFailed(Exception):
    """What Spark ends a query with."""


# -- the process that forks them ---------------------------------------------------------------------------------------


@contextmanager
def engine() -> Iterator[str]:
    """:returns: the address to :func:`start` drivers by."""
    with forking(__name__, within_s=START_S) as address:
        yield address


def start(address: str, order: dict[str, Any]) -> socket.socket:
    """A driver, or a command; what is returned gives a line with its exit code once it has ended."""
    asking = socket.socket(socket.AF_UNIX)
    asking.connect(address)
    asking.sendall(json.dumps(order).encode() + b"\n")
    return asking


def command(address: str, arguments: Sequence[str], environ: dict[str, str], out: Path) -> int:
    """``airflow-kafka-eos`` with these arguments, in a process of its own, whose environment is nobody else's.

    :param out: it, with ``.out`` and ``.err`` behind, is the file for what it says.
    :returns: its exit code.
    """
    with start(address, {"arguments": list(arguments), "environ": environ, "out": str(out)}) as asking:
        asking.settimeout(COMMAND_S)
        return int(asking.recv(100) or b"-1")


def _serve(address: str) -> None:
    _preload()
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(64)
    os.rename(f"{address}.new", address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with contextlib.suppress(OSError, ValueError):
                _nurse(asking)
            os._exit(0)
        asking.close()


def _preload() -> None:
    # what each would import by itself, at its first batch
    import sqlite3  # noqa: F401
    import stringprep  # noqa: F401

    import confluent_kafka  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.compute  # noqa: F401
    import pyspark.cloudpickle
    import pyspark.sql.types  # noqa: F401
    from sqlalchemy.dialects import sqlite  # noqa: F401
    from sqlalchemy.dialects.postgresql import psycopg2  # noqa: F401

    import airflow_kafka_eos.kafka.producer.confluent
    import airflow_kafka_eos.kafka.producer.writers
    import airflow_kafka_eos.streams.driver
    import airflow_kafka_eos.streams.source  # noqa: F401


def _nurse(asking: socket.socket) -> None:
    with asking.makefile("r") as line:
        order = json.loads(line.readline())
    driver = os.fork()
    if driver == 0:
        asking.close()
        _die_in_order(lambda: _command(order) if "arguments" in order else _driver(order))
    _, status = os.waitpid(driver, 0)
    asking.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _die_in_order(work: Callable[[], int]) -> None:
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _say_into(path: Path) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(path.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def _command(order: dict[str, Any]) -> int:
    from airflow_kafka_eos.cli import main

    _say_into(Path(order["out"]))
    os.environ.update(order["environ"])
    return main(order["arguments"])


# -- Python processes of a driver --------------------------------------------------------------------------------------

#: of this process's own ends of pipes: a helper that was forked later must not hold them open
_ends: list[int] = []


class Helper:
    """A Python process beside the driver. It does what it is asked, and ends when nobody can ask any more."""

    def __init__(self, role: str, environ: dict[str, str]) -> None:
        asked, asking = os.pipe()
        answered, answering = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for end in (*_ends, asking, answered):
                with contextlib.suppress(OSError):
                    os.close(end)
            os.environ.update(environ)
            _die_in_order(lambda: _help(role, os.fdopen(asked, "rb"), os.fdopen(answering, "wb")))
        os.close(asked)
        os.close(answering)
        _ends.extend((asking, answered))
        self._fds = (asking, answered)
        self._asking, self.answers = os.fdopen(asking, "wb"), os.fdopen(answered, "rb")

    def ask(self, *request: Any) -> None:
        pickle.dump(request, self._asking)
        self._asking.flush()

    def answer(self) -> Any:
        """
        :raises EOFError: it has died.
        :raises QueryFailed: what it was asked for failed.
        """
        answer, error = pickle.load(self.answers)
        if error:
            raise QueryFailed(error)
        return answer

    def call(self, *request: Any) -> Any:
        try:
            self.ask(*request)
            return self.answer()
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as e:
            raise QueryFailed(f"a Python process of the driver has died: {e!r}") from e

    def end(self) -> None:
        for file in (self._asking, self.answers):
            with contextlib.suppress(OSError):
                file.close()
        for end in self._fds:
            _ends.remove(end)


def _help(role: str, requests: BinaryIO, answers: BinaryIO) -> int:
    by_role: dict[str, Callable[..., Any]] = {"plan": _plan, "task": _task, "end": _end}
    work = by_role[role]
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return 0
        try:
            answer: tuple[Any, str] = work(*request), ""
        except Exception:
            answer = None, traceback.format_exc()
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            return 0


def _schema() -> Any:
    from pyspark.sql.types import StringType, StructType

    return StructType().add("key", StringType()).add("value", StringType())


def _plan(options: dict[str, str]) -> bytes:
    from pyspark import cloudpickle

    from airflow_kafka_eos.streams.source import KafkaEosStreams

    made: bytes = cloudpickle.dumps(KafkaEosStreams(dict(options)).streamWriter(_schema(), False))  # type: ignore[no-untyped-call]
    return made


def _task(writer: bytes, rows: list[str], context: dict[str, Any]) -> Any:
    import pyarrow as pa
    from pyspark import TaskContext

    now = TaskContext._getOrCreate()
    for name, value in context.items():
        setattr(now, name, value)
    columns = [pa.array(rows, pa.string())] * 2
    batches = [pa.RecordBatch.from_arrays(columns, ["key", "value"])] if rows else []
    return pickle.loads(writer).write(iter(batches))


def _end(source: bytes, what: str, messages: list[Any], number: int) -> None:
    getattr(pickle.loads(source).streamWriter(_schema(), False), what)(messages, number)


# -- the driver --------------------------------------------------------------------------------------------------------


def _driver(order: dict[str, Any]) -> int:
    os.setsid()
    folder, life = Path(order["folder"]), order["life"]
    Path(folder, f"pid-{life}").write_text(str(os.getpid()))
    _say_into(folder / f"driver-{life}")
    os.environ.update(order["environ"] | {FOLDER: str(folder), LIFE: str(life)})
    spec = order["spec"]
    environ = {"SPARK_LOCAL_DIRS": f"/tmp/blockmgr-{uuid.uuid4()}"}
    queries = [_Query(one, spec, environ) for one in spec["queries"]]
    print("STARTED", flush=True)
    try:
        while not Path(spec["stop"]).exists():
            # each in its turn, where Spark has a thread for each
            if not any([query.batch() for query in queries]):
                time.sleep(POLL_S)
    except QueryFailed as e:
        print("FAILED", e, flush=True)
        return 1
    return 0


class _Query:
    """A query's micro-batches, as Spark's MicroBatchExecution runs them with a source of files."""

    def __init__(self, query: dict[str, Any], spec: dict[str, Any], environ: dict[str, str]) -> None:
        from pyspark import cloudpickle

        from airflow_kafka_eos.streams.source import KafkaEosStreams

        self._spec, self._environ = spec, environ
        self._root = Path(query["checkpoint"])
        for name in ("offsets", "commits", "sources/0"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        metadata = self._root / "metadata"
        if not metadata.exists():
            _create(metadata, json.dumps({"id": str(uuid.uuid4())}))
        self._id = json.loads(metadata.read_text())["id"]
        self._options = {
            "kafka.bootstrap.servers": spec["bootstrap"],
            "topic": query["topic"],
            "load.namespace": spec["namespace"],
            "checkpointLocation": query["checkpoint"],
            "queryName": query["name"],
        } | spec["options"]
        source = KafkaEosStreams(dict(self._options))
        self._source: bytes = cloudpickle.dumps(source)  # type: ignore[no-untyped-call]
        self._planner, self._ender = Helper("plan", environ), Helper("end", environ)
        self._workers: list[Helper] = []
        self._taken = 0
        #: the batch that this run has planned last; None: it has planned none
        self._planned: int | None = None

    def batch(self) -> bool:
        """The next one, whole; False: there is nothing new."""
        number = self._next()
        if number is None:
            return False
        before = self._offset(number - 1) if number else -1
        rows = self._rows(before, self._offset(number))
        messages: list[Any] = []
        writer = self._planner.call(self._options)
        try:
            messages = self._run_tasks(writer, rows, number)
            self._ender.call(self._source, "commit", messages, number)
        except QueryFailed:
            with contextlib.suppress(QueryFailed):
                self._ender.call(self._source, "abort", messages, number)
            raise
        if not _create(self._root / "commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}'):
            raise QueryFailed(f"another run has noted batch {number} as done")
        print("BATCH", number, flush=True)
        return True

    def _next(self) -> int | None:
        offsets, commits = (_numbers(self._root / name) for name in ("offsets", "commits"))
        last = offsets[-1] if offsets else -1
        if self._planned is None and last >= 0 and (not commits or commits[-1] < last):
            self._planned = last  # it is replayed
            return last
        number = last + 1 if self._planned is None else self._planned + 1
        end = self._fetch()
        if end == (self._offset(number - 1) if number else -1):
            return None
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{end}}}'
        if not _create(self._root / "offsets" / str(number), text):
            raise QueryFailed(f"another run has planned batch {number}")
        self._planned = number
        return number

    def _offset(self, number: int) -> int:
        try:
            text = (self._root / "offsets" / str(number)).read_text()
        except FileNotFoundError as e:
            raise QueryFailed(f"the offsets of batch {number} are gone") from e
        found: int = json.loads(text.splitlines()[-1])["logOffset"]
        return found

    def _fetch(self) -> int:
        """What has come is noted in the source's own log; where that ends."""
        log = self._root / "sources" / "0"
        numbers = _numbers(log)
        seen = {entry["path"] for entry in self._entries(-1, numbers[-1] if numbers else -1)}
        every = sorted(Path(self._spec["source"]["folder"]).iterdir(), key=lambda p: (p.stat().st_mtime_ns, p.name))
        new = [path for path in every if str(path) not in seen][: self._spec["source"]["files"]]
        if not new:
            return numbers[-1] if numbers else -1
        number = numbers[-1] + 1 if numbers else 0
        lines = [
            json.dumps({"path": str(path), "timestamp": path.stat().st_mtime_ns // 10**6, "batchId": number})
            for path in new
        ]
        if not _create(log / str(number), "\n".join(["v1", *lines])):
            raise QueryFailed(f"another run has noted the files of offset {number}")
        return number

    def _entries(self, since: int, until: int) -> Iterator[dict[str, Any]]:
        for number in range(since + 1, until + 1):
            for line in (self._root / "sources" / "0" / str(number)).read_text().splitlines()[1:]:
                yield json.loads(line)

    def _rows(self, since: int, until: int) -> list[list[str]]:
        """By task."""
        files = [Path(entry["path"]).read_text().splitlines() for entry in self._entries(since, until)]
        tasks = self._spec["tasks"]
        if not tasks:
            return files
        parts: list[list[str]] = [[] for _ in range(tasks)]
        for number, row in enumerate(row for lines in files for row in lines):
            parts[number % tasks].append(row)
        return parts

    def _run_tasks(self, writer: bytes, parts: list[list[str]], batch: int) -> list[Any]:
        """As many at a time as there are cores; one whose process dies runs once more. All have answered, or some
        are still at work when this raises."""
        messages: dict[int, Any] = {}
        waiting = [(partition, 0) for partition in range(len(parts))]
        running: dict[int, tuple[Helper, int, int]] = {}
        while waiting or running:
            while waiting and len(running) < self._spec["cores"]:
                partition, failures = waiting.pop(0)
                worker = self._workers.pop() if self._workers else Helper("task", self._environ)
                self._taken += 1
                context = {
                    "_partitionId": partition,
                    "_attemptNumber": failures,
                    "_taskAttemptId": self._taken,
                    "_stageId": batch,
                    "_localProperties": {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": self._id}
                    | self._spec["spark"],
                }
                with contextlib.suppress(BrokenPipeError):
                    worker.ask(writer, parts[partition], context)
                running[worker.answers.fileno()] = worker, partition, failures
            ready, _, _ = select.select(list(running), [], [])
            for end in ready:
                worker, partition, failures = running.pop(end)
                try:
                    messages[partition] = worker.answer()
                    self._workers.append(worker)
                    continue
                except (EOFError, pickle.UnpicklingError):
                    worker.end()
                    error = "its Python worker has died"
                except QueryFailed as e:
                    self._workers.append(worker)
                    error = str(e)
                if failures + 1 >= MOST_FAILURES:
                    raise QueryFailed(f"task {partition} of batch {batch} failed: {error}")
                waiting.append((partition, failures + 1))
        return [messages[partition] for partition in sorted(messages)]


def _create(path: Path, text: str) -> bool:
    """As Spark writes its logs: whole or not at all; False where it is there."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    temporary.write_text(text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except FileNotFoundError as e:
        raise QueryFailed(f"the checkpoint is gone: {path}") from e
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _numbers(folder: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit()) if folder.is_dir() else []


if __name__ == "__main__":
    from tests.faults.worlds import stream_steps

    stream_steps.plant()
    _serve(sys.argv[1])
