"""One load of each fate on each broker line that is supported, with the transaction versions that it has (KIP-890).

A few of them by default, so that each line and each transaction version is there; ``BROKER_VERSIONS=all`` takes all. A
kind is written as in ``BROKER_VERSIONS=4.0.0/2,4.3/0``: a version and its ``transaction.version``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer
from kafka.protocol.producer.transaction import InitProducerIdRequest

from airflow_kafka_eos.errors import BrokerTooOldError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.protocol.stages.decide import Conditions
from airflow_kafka_eos.sandbox.jars import VERSIONS
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import Outcome
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import decided, read, state
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker
CHOSEN = os.environ.get("BROKER_VERSIONS", "")
_numbers = itertools.count(1)

#: 4.0.0 has a fault of its own: a timeout and fencing raise the epoch twice (KAFKA-19367)
_EVERY = [("3.9", 0), *((version, level) for version in ("4.0.0", *list(VERSIONS)[1:]) for level in (0, 1, 2))]
_FEW = [("3.9", 0), ("4.0.0", 2), ("4.0", 1), ("4.1", 0), ("4.2", 2), ("4.3", 1), ("4.4", 0)]


def _chosen(text: str) -> list[tuple[str, int]]:
    if text in ("", "all"):
        return _EVERY if text else _FEW
    return [(version, int(level)) for version, _, level in (kind.partition("/") for kind in text.split(","))]


@pytest.fixture(
    scope="module",
    params=_chosen(CHOSEN),
    ids=lambda kind: f"{kind[0]}/{kind[1]}",
)
def base(request: pytest.FixtureRequest, ledger_url: str) -> Iterator[World]:
    version, level = request.param
    with LocalKafka(version=version, transaction_version=level) as kafka:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        with connect(settings, ledger_url, "versions") as session:
            kafka.create_topic("orders", partitions=2)
            yield World(session, settings, "orders", LoadIdentity("versions", "orders", "none"))


@pytest.fixture
def world(base: World) -> World:
    return replace(base, load=LoadIdentity("versions", "orders", f"key-{next(_numbers)}"))


def swept(world: World) -> list[str]:
    """The transactional ids that cleanup has ended."""
    poll = CleanPoll(world.load, up_to=1, by=RUN, quiet_s=0)
    for _ in range(100):
        if poll(world.session) is None:
            return list(poll.summary()["aborted"])
    raise AssertionError("cleanup does not come to an end")


def outcomes(world: World) -> list[Outcome | None]:
    return sorted((t.outcome for t in world.session.ledger.transactions(world.load, 1)), key=str)


def test_what_is_decided_is_committed_and_what_is_not_is_aborted(world: World) -> None:
    before = len(read(world, "read_committed"))
    manifest = decided(world, 2)
    refused = replace(world, load=replace(world.load, key=f"{world.load.key} refused"))
    again = refused.prepare(["x"], ["y"])
    world.commit()
    with pytest.raises(Exception, match="too few"):
        refused.decide(again, Conditions(check=lambda manifest: "too few"))
    assert len(swept(refused)) == 2
    assert (state(world), outcomes(world)) == (LoadState.COMMITTED, [Outcome.COMMITTED] * 2)
    assert len(read(world, "read_committed")) == before + manifest.records
    assert world.open_ids() == []


def test_what_the_broker_aborts_after_the_decision_is_repaired(world: World, request: pytest.FixtureRequest) -> None:
    """By fencing, and where that takes its time only on some, by timeout. Kafka 4.0.0: that was IN_DOUBT."""
    before = len(read(world, "read_committed"))
    fenced = decided(world, 1)
    every = {world.load: (world, fenced)}
    if request.node.callspec.params["base"][0] == "4.0.0" or CHOSEN:
        other = replace(world, load=replace(world.load, key=f"{world.load.key} other"), timeout_ms=12_000)
        every[other.load] = (other, decided(other, 1))
    world.session.coordinator.init_producer_id(fenced.transactions[0].transactional_id, 60_000)
    wait_until(lambda: world.open_ids() == [], "the broker's aborts", 60)
    for one, _ in every.values():
        one.commit(deadline_s=60)
        assert (state(one), outcomes(one)) == (LoadState.COMMITTED, [Outcome.COMMITTED, Outcome.SUPERSEDED])
    assert len(read(world, "read_committed")) == before + sum(manifest.records for _, manifest in every.values())
    assert world.open_ids() == []


def test_two_phase_commit_is_granted_from_4_1_on(world: World) -> None:
    """Whatever the transaction version is."""
    before = len(read(world, "read_committed"))
    info = world.session.partitions.wire.api_version(InitProducerIdRequest)
    assert info is not None
    if info < 6:  # 3.9 and 4.0
        with pytest.raises(BrokerTooOldError, match="two-phase commit"):
            world.prepare_two_phase(["a"])
        return
    manifest = world.prepare_two_phase(["a"], ["b"])
    described = world.session.coordinator.describe([t.transactional_id for t in manifest.transactions])
    assert all(d.is_two_phase for d in described.values())
    world.decide(manifest)
    world.commit()
    assert len(read(world, "read_committed")) == before + 2


def test_a_zombie_writes_nothing_that_is_seen_and_leaves_nothing_open(world: World) -> None:
    """Behind the end of its transaction; on transaction version 1 it begins anew under the same epoch."""
    before = len(read(world, "read_committed"))
    ref = reference(world.session, world.open_attempt())
    name = str(TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 1))
    zombie = Producer(
        {
            "bootstrap.servers": world.settings.bootstrap_servers, "transactional.id": name, "log_level": 0,
            "transaction.timeout.ms": 600_000,
        }
    )  # fmt: skip
    zombie.init_transactions(60)
    zombie.begin_transaction()
    zombie.produce(world.topic, b"z", partition=0)
    assert zombie.flush(30) == 0
    assert swept(world) == [name]
    try:
        zombie.produce(world.topic, b"late", partition=1)
        zombie.flush(10)
    except KafkaException:
        pass  # fenced
    assert set(swept(world)) <= {name}
    assert world.open_ids() == []
    assert len(read(world, "read_committed")) == before
