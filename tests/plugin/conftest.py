"""One real api-server with the plugin, users of all roles, and loads that were made by the protocol's own calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.plugin.api_server import ApiServer
from tests.protocol.world import World

#: a password that this broker's listener does not ask for: it must show up nowhere
SECRET = "hunter2-correct-horse"
USERS = {
    "viewer": "viewer",
    "user": "user",
    "op": "op",
    "admin": "admin",
    "stranger": "user",
    "neighbour": "user",
}
PASSWORD = "of-a-test-user"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Site:
    """The running Airflow and what stands behind its page."""

    airflow: ApiServer
    ledger_url: str
    session: Session
    settings: KafkaSettings

    def client(self, user: str | None) -> httpx.Client:
        """Logged in as a user, or as nobody."""
        headers = {}
        if user is not None:
            answer = httpx.post(
                f"{self.airflow.url}/auth/token", json={"username": user, "password": PASSWORD}, timeout=30
            )
            headers["Authorization"] = f"Bearer {answer.raise_for_status().json()['access_token']}"
        return httpx.Client(base_url=self.airflow.url, headers=headers, timeout=90)


@pytest.fixture(scope="session")
def site(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("page")
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps(dict.fromkeys(USERS, PASSWORD)))
    extra = {"bootstrap.servers": kafka.bootstrap_servers}
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{u}:{role}" for u, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.plugin.auth_manager.OneDagAuthManager",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    connections = {
        "kafka_default": {"conn_type": "kafka", "extra": extra | {"sasl.password": SECRET}},
        "kafka_away": {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}},
    }
    url = f"sqlite:///{home}/kafka_eos_ledger.db"
    Ledger.open(url, upgrade=True).close()
    at = KafkaSettings.from_mapping(extra)
    with (
        ApiServer(home, HERE / "dags", connections=connections, settings=settings) as airflow,
        connect(at, url, "airflow") as session,
    ):
        yield Site(airflow, url, session, at)


@pytest.fixture
def new_load(site: Site, topic: Callable[..., str]) -> Iterator[Callable[..., World]]:
    """A factory: ``new_load(run_id, dag_id="orders")`` makes a run of the DAG, and a load that is the run's own."""
    made: list[World] = []

    def make(run_id: str, dag_id: str = "orders") -> World:
        with site.client("admin") as admin:
            body: dict[str, Any] = {"dag_run_id": run_id, "logical_date": None}
            admin.post(f"/api/v2/dags/{dag_id}/dagRuns", json=body).raise_for_status()
        load = LoadIdentity("airflow", f"{dag_id}.load", run_id)
        world = World(site.session, site.settings, topic(partitions=2), load)
        made.append(world)
        return world

    yield make
    ledger = site.session.ledger
    for world in made:  # so that no test sees what another one has left open
        if ledger.load(world.load) is None:
            continue
        rows = ledger.make_undecidable(world.load, up_to=99, decided_by="test", reason="over")
        states = {t.transaction for row in rows for t in ledger.transactions(world.load, row.number)}
        for name, seen in site.session.coordinator.describe([t.transactional_id for t in states]).items():
            if seen.is_open:
                site.session.coordinator.end(PreparedTransaction(name, seen.state), Verdict.ABORT)


def owner(world: World, dag_id: str = "orders") -> str:
    """As operators of the load's task group write it."""
    return f"{dag_id}/{world.load.key}#group=load"
