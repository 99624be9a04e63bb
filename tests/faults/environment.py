"""Real parts that many runs share: clusters, PostgreSQL, the zygote. Each run gets topics and a ledger of its own."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from sqlalchemy.exc import OperationalError

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.faults.guarding import guarded
from tests.faults.ledger_server import lock_of
from tests.faults.scenario import Scenario
from tests.faults.timeline import Timeline
from tests.faults.zygote import zygote
from tests.postgresql import PostgreSQL, postgresql_server

#: of one broker; three of them share a machine with all else
HEAP = "384m"
CONNECTED_S = 30.0
#: retention and cleaner come all the while, where a topic lets them take something
_ROUNDS = {
    "log.initial.task.delay.ms": "3000",
    "log.retention.check.interval.ms": "3000",
    "log.cleaner.backoff.ms": "300",
}


class Environment:
    """Starts each part when it is first asked for. Any number of threads may ask at a time.

    :param other: whose parts it uses, but for PostgreSQL.
    """

    def __init__(self, folder: Path, other: Environment | None = None) -> None:
        self.folder = folder
        self._other = other
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._postgresql: PostgreSQL | None = None
        self._template: Path | None = None
        self._zygote: str | None = None
        self._numbers: Iterator[int] = itertools.count(1) if other is None else other._numbers

    def __enter__(self) -> Environment:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def zygote(self) -> str:
        if self._other is not None:
            return self._other.zygote
        with self._lock:
            if self._zygote is None:
                self._zygote = self._stack.enter_context(zygote())
            return self._zygote

    @contextmanager
    def of(self, scenario: Scenario) -> Iterator[Environment]:
        """What a run is to get: this, and where its PostgreSQL goes down, one of its own."""
        if not scenario.takes_database_down:
            yield self
            return
        with Environment(self.folder, self) as own:
            yield own

    def number(self) -> int:
        """A run's own, so that a seed may run twice."""
        return next(self._numbers)

    def ledger(self, kind: str, name: str, folder: Path) -> Database:
        """A new one, upgraded and empty."""
        if kind == "sqlite":
            file = folder / "ledger.db"
            shutil.copy(self._sqlite_template(), file)
            return Database(f"sqlite:///{file}", None, None)
        server = self._server()
        server.run(f"CREATE DATABASE {name} TEMPLATE template_ledger")
        return Database(server.url(name), server, name)

    @property
    def postgresql(self) -> PostgreSQL:
        return self._server()

    def _sqlite_template(self) -> Path:
        with self._lock:
            if self._template is None:
                self._template = self.folder / "template.db"
                Ledger.open(f"sqlite:///{self._template}", upgrade=True).close()
            return self._template

    def _server(self) -> PostgreSQL:
        with self._lock:
            if self._postgresql is None:
                guards = self._stack.enter_context(ExitStack())  # it ends behind the server
                self._postgresql = self._stack.enter_context(postgresql_server())
                guards.enter_context(guarded(lock_of(self._postgresql.directory, self._postgresql.port)))
            return self._postgresql


class Database:
    """One run's ledger.

    :param server: PostgreSQL's; None for SQLite.
    """

    def __init__(self, url: str, server: PostgreSQL | None, name: str | None) -> None:
        self.url = url
        self.server = server
        self._name = name

    def socket(self, directory: str) -> str:
        """Path of PostgreSQL's socket, were it in that directory."""
        assert self.server is not None
        return f"{directory}/.s.PGSQL.{self.server.port}"

    def url_through(self, directory: str) -> str:
        """The same database, by a socket in another directory."""
        assert self.server is not None
        return self.url.replace(f"host={self.server.directory}", f"host={directory}")

    def save(self) -> None:
        """As a backup does; nobody of ours is connected. There is one at a time."""
        if self.server is None:
            _copy(self._file, f"{self._file}.saved")
            return
        self._drop(f"{self._name}_saved")
        self._clone(str(self._name), f"{self._name}_saved")

    def put_back(self) -> None:
        """As it was when it was saved."""
        if self.server is None:
            _copy(f"{self._file}.saved", self._file)
            return
        self._drop(str(self._name))
        self._clone(f"{self._name}_saved", str(self._name))

    def drop(self) -> None:
        if self.server is not None:
            for name in (str(self._name), f"{self._name}_saved"):
                self._drop(name)

    @property
    def _file(self) -> str:
        return self.url.removeprefix("sqlite:///")

    def _drop(self, name: str) -> None:
        assert self.server is not None
        self.server.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _clone(self, name: str, new: str) -> None:
        """Who has been killed may be connected for a moment yet."""
        assert self.server is not None
        until = time.monotonic() + CONNECTED_S
        while True:
            try:
                return self.server.run(f"CREATE DATABASE {new} TEMPLATE {name}")
            except OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)


def _copy(file: str, to: str) -> None:
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


@contextmanager
def cluster(kind: tuple[str, int]) -> Iterator[LocalKafka]:
    """:param kind: version, as a scenario has it, and number of brokers."""
    (version, _, level), brokers = kind[0].partition("/"), kind[1]
    wanted = int(level) if level else None
    with LocalKafka(
        version=version, brokers=brokers, heap=HEAP, broker_settings=_ROUNDS, transaction_version=wanted
    ) as running:
        yield running


def delete_topics(servers: str, topics: list[str], timeline: Timeline, longest_s: float = 30) -> None:
    """A cluster that is slow to delete them is no word about the run."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})  # it must outlive its answers
    try:
        for done in admin.delete_topics(topics).values():
            done.result(longest_s)
    except Exception as e:
        timeline.log("topics are not deleted", error=f"{type(e).__name__}: {e}"[:500])


@contextmanager
def short_folder() -> Iterator[str]:
    """A Unix socket's path has a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="kf-") as folder:
        yield folder
