"""A ledger on each real database: an SQLite file, a PostgreSQL server of this session, MariaDB where there is one."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos.ledger import Ledger, migrate
from tests.ledger.mariadb import MariaDB, executable, running_mariadb
from tests.postgresql import PostgreSQL


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
