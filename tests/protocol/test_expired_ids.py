"""Coordinators forget ids that rest (transactional.id.expiration.ms); what is decided is judged by the log.

Rule: log-is-the-evidence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.conftest import NO_RETENTION_ROUNDS
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import decided, lose, read, state
from tests.protocol.world import World

pytestmark = pytest.mark.broker
_numbers = itertools.count(1)

#: Ids, and producers at partitions' leaders, are forgotten within a second or two of their end.
FORGETFUL = {
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "producer.id.expiration.ms": "1000",
    "producer.id.expiration.check.interval.ms": "200",
}


@pytest.fixture(scope="module")
def forgetful(ledger_url: str) -> Iterator[tuple[LocalKafka, Session]]:
    with LocalKafka(broker_settings=NO_RETENTION_ROUNDS | FORGETFUL) as kafka:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        with connect(settings, ledger_url, "forgotten") as session:
            yield kafka, session


@pytest.fixture
def world(forgetful: tuple[LocalKafka, Session]) -> World:
    kafka, session = forgetful
    number = next(_numbers)
    kafka.create_topic(f"forgotten-{number}", partitions=2)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    return World(session, settings, f"forgotten-{number}", LoadIdentity("forgotten", "orders", f"key-{number}"))


def forgotten(world: World, *transactions: PreparedTransaction) -> None:
    """Wait until coordinators know none of them."""
    names = [t.transactional_id for t in transactions]
    wait_until(lambda: not world.session.coordinator.describe(names), "the coordinators to forget the ids")


def test_a_commit_that_nobody_verified_is_verified_by_the_log_alone(world: World) -> None:
    manifest = decided(world, 2)
    for transaction in manifest.transactions:
        world.session.coordinator.end(transaction, Verdict.COMMIT)  # and then the process was gone
    forgotten(world, *manifest.transactions)
    world.commit()
    assert state(world) is LoadState.COMMITTED
    assert len(read(world, "read_committed")) == manifest.records


def test_what_was_lost_and_forgotten_is_repaired_all_the_same(world: World) -> None:
    manifest = decided(world, 2)
    lose(world, manifest.transactions[0])
    world.session.coordinator.end(manifest.transactions[1], Verdict.COMMIT)
    forgotten(world, *manifest.transactions)
    world.commit()
    assert state(world) is LoadState.COMMITTED
    assert len(read(world, "read_committed")) == manifest.records


def test_an_open_transaction_is_never_forgotten(world: World) -> None:
    """However old it is: here it outlives two others that were ended behind it."""
    manifest = decided(world, 1)
    other = World(world.session, world.settings, world.topic, LoadIdentity("forgotten", "others", world.load.key))
    ended = decided(other, 2)
    for transaction in ended.transactions:
        world.session.coordinator.end(transaction, Verdict.ABORT)
    forgotten(world, *ended.transactions)
    assert world.open_ids() == [manifest.transactions[0].transactional_id]
    world.commit()
    assert state(world) is LoadState.COMMITTED
