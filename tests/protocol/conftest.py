"""A fresh load on a fresh topic for each test; broker and ledger are shared by the folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger import queries
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, check_move
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.protocol.lax import lax_kafka, session_on, world_on
from tests.protocol.world import World
from tests.site_modules import of_site

_numbers = itertools.count(1)
#: by test, the states that docs/images/load-failures-*.svg shows
WAYS = {failure.test: list(failure.way) for failure in of_site("pictures").FAILURES}


def without_repetition(states: list[LoadState]) -> list[LoadState]:
    """A new attempt is no new state."""
    return [state for state, _ in itertools.groupby(states)]


@pytest.fixture(autouse=True)
def goes_its_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the picture shows of a failure is what its test goes through, as far as it goes."""
    way = WAYS.get(request.node.nodeid.partition("[")[0])
    if way is None:
        yield
        return
    gone: dict[LoadIdentity, list[LoadState]] = {}

    def note(load: LoadIdentity, old: LoadState, new: LoadState) -> None:
        check_move(load, old, new)
        gone.setdefault(load, [old]).append(new)

    monkeypatch.setattr(queries, "check_move", note)
    yield
    wanted = without_repetition(way)
    ways = [without_repetition(states) for states in gone.values()]
    # a test of an abort may end before its cleanup, and what is in doubt may be mended in the same test
    assert any(len(one) >= len(wanted) - 1 and one[: len(wanted)] == wanted[: len(one)] for one in ways), ways


@pytest.fixture(scope="session")
def ledger_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    url = f"sqlite:///{path}"
    Ledger.open(url, upgrade=True).close()
    return url


@pytest.fixture(scope="session")
def settings(kafka: LocalKafka) -> KafkaSettings:
    return KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture(scope="session")
def session(settings: KafkaSettings, ledger_url: str) -> Iterator[Session]:
    with connect(settings, ledger_url, "test") as opened:
        yield opened


@pytest.fixture
def world(session: Session, settings: KafkaSettings, topic: Callable[..., str]) -> World:
    return World(
        session, settings, topic(partitions=2), LoadIdentity("test", "orders", f"key-{next(_numbers)}")
    )


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def lax(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Brokers that take records for partitions that no coordinator knows of."""
    with lax_kafka(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def lax_session(lax: LocalKafka, ledger_url: str) -> Iterator[Session]:
    with session_on(lax, ledger_url) as opened:
        yield opened


@pytest.fixture
def lax_world(lax: LocalKafka, lax_session: Session) -> World:
    """A topic with three partitions on those brokers; the third is for markers alone."""
    return world_on(lax, lax_session, "forgotten", partitions=3)
