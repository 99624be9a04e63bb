"""A principal with the least set of ACLs (docs/acls.md), by SASL_SSL with SCRAM, on brokers old and new."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from tests.acls import Right, allow_exactly
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import RUN, World
from tests.secured import Secured, secured_broker

NAMESPACE = "least"
PRINCIPAL = "User:loader"
WRITE_IDS = Right("WRITE", "TransactionalId", f"{NAMESPACE}.*")
WRITE_TOPIC = Right("WRITE", "Topic", "least-*")
READ_TOPIC = Right("READ", "Topic", "least-*")
TWO_PHASE = Right("TWO_PHASE_COMMIT", "TransactionalId", f"{NAMESPACE}.*")
#: no ACL of the least set, which has WRITE: with this one alone ids are seen, and not ended
DESCRIBE_IDS = Right("DESCRIBE", "TransactionalId", f"{NAMESPACE}.*")
LEAST = {WRITE_IDS, WRITE_TOPIC, READ_TOPIC}
#: How messages name an id of this namespace.
AN_ID = rf"TransactionalId {NAMESPACE}\.\w{{10}}\.orders\."
#: How remedies name what to grant: the next attempt has other ids.
OUR_IDS = rf"TransactionalIds prefixed {NAMESPACE}\."
PARTS = (["a", "b"], ["c"])
#: transaction versions 2 and 1; a listing with and without patterns
VERSIONS = ("4.4.0", "3.9.2")
_numbers = itertools.count(1)


def by_arrow(world: World, *parts: list[str]) -> Manifest:
    """Scope task by the arrow writer, with a timeout."""
    ref = reference(world.session, world.open_attempt())
    names = [TransactionalId(ref.load, ref.ledger_id, ref.attempt, n, n) for n in range(len(parts))]
    entries = [ManifestEntry(n, *world.write_arrow(names[n], part)) for n, part in enumerate(parts)]
    manifest = world.manifest(ref, entries)
    record_prepared(world.session, manifest)
    return manifest


def pooled(world: World) -> PooledWorld:
    return PooledWorld(world.session, world.settings, world.topic, world.load)


PREPARE: dict[str, Callable[..., Manifest]] = {
    "confluent": World.prepare,
    "arrow": by_arrow,
    "pooled": lambda world, *parts: pooled(world).prepare(*parts),
    "scope load": World.prepare_shared,
    "two phases": World.prepare_two_phase,
}


@pytest.fixture(scope="module", params=VERSIONS)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The test session's own broker is the newest; an old one is started for the module."""
    if request.param == VERSIONS[0]:
        yield request.getfixturevalue("secured")
        return
    with secured_broker(tmp_path_factory.mktemp("secured"), request.param) as running:
        yield running


@pytest.fixture(scope="module")
def ledger_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    Ledger.open(f"sqlite:///{path}", upgrade=True).close()
    return path


@pytest.fixture(scope="module")
def session(secured: Secured, ledger_path: Path) -> Iterator[Session]:
    with connect(secured.loader(), f"sqlite:///{ledger_path}", NAMESPACE) as opened:
        yield opened
    allow_exactly(secured.plain, PRINCIPAL, ())


@pytest.fixture
def world(session: Session, secured: Secured) -> World:
    number = next(_numbers)
    secured.plain.create_topic(f"least-{number}", partitions=2)
    return World(session, secured.loader(), f"least-{number}", LoadIdentity(NAMESPACE, "orders", f"key-{number}"))


def least(kind: str) -> set[Right]:
    return LEAST | {TWO_PHASE} if kind == "two phases" else LEAST


def kinds_of(secured: Secured) -> list[str]:
    """How a load can be prepared there: Kafka 3.9 has neither two-phase commit nor its ACL."""
    return [kind for kind in PREPARE if kind != "two phases" or not secured.plain.version.startswith("3.")]


def skip_unless_possible(kind: str, secured: Secured) -> None:
    if kind not in kinds_of(secured):
        pytest.skip(f"Kafka {secured.plain.version} has no two-phase commit")


def seen_by_all(world: World, secured: Secured) -> World:
    """The same world for a principal that may do everything."""
    plain = KafkaSettings.from_mapping({"bootstrap.servers": secured.plain.bootstrap_servers})
    return replace(world, settings=plain)


def sweep_to_the_end(world: World) -> None:
    newest = max(row.number for row in world.session.ledger.attempts(world.load))
    poll = CleanPoll(world.load, up_to=newest, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
