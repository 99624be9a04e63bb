"""One SQLite file and one PostgreSQL database, shared by all cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from tests.crashes.zygote import Zygote, zygote
from tests.postgresql import PostgreSQL


@pytest.fixture(scope="session")
def ledger_urls(tmp_path_factory: pytest.TempPathFactory, postgresql: PostgreSQL) -> dict[str, str]:
    postgresql.run("CREATE DATABASE crashes TEMPLATE template_ledger")
    urls = {
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('crashes')}/ledger.db",
        "postgresql": postgresql.url("crashes"),
    }
    Ledger.open(urls["sqlite"], upgrade=True).close()
    return urls


@pytest.fixture(scope="session")
def victims() -> Iterator[Zygote]:
    with zygote() as running:
        yield running
