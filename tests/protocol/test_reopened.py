"""Transaction version 1: an end bumps no epoch, and a zombie begins anew under the very identity that is committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow, summary_of
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import ManifestEntry, PartitionWrites
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import zombie_reopened
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("reopened")
    url = f"sqlite:///{folder}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with LocalKafka(version="3.9.2") as kafka:
        kafka.create_topic("orders", partitions=3)
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        with connect(settings, url, "test") as session:
            yield World(session, settings, "orders", LoadIdentity("test", "orders", "k"))


def _produce(producer: Producer, partition: int) -> int:
    """One record; its offset."""
    found: list[int] = []
    producer.produce(
        "orders", b"v", partition=partition,
        on_delivery=lambda error, m: found.append(-1 if error or (at := m.offset()) is None else at),
    )  # fmt: skip
    assert producer.flush(30) == 0
    return found[0]


def test_a_zombie_under_a_committed_identity_is_found_and_ended_and_the_commit_stays(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    name = str(TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 1))
    writer = Producer({"bootstrap.servers": world.settings.bootstrap_servers, "transactional.id": name})
    writer.init_transactions(30)
    writer.begin_transaction()
    offset = _produce(writer, 0)
    state = world.session.coordinator.describe([name])[name].state
    writes = (PartitionWrites("orders", 0, 1, 1, offset, offset, "0" * 32, int(time.time() * 1000)),)
    world = replace(world, timeout_ms=60_000)
    manifest = world.manifest(ref, [ManifestEntry(0, PreparedTransaction(name, state), writes)])
    record_prepared(world.session, manifest)
    world.decide(manifest)
    before = world.session.coordinator.describe([name])[name]
    # not committed yet: whatever is open is the decided one
    assert not zombie_reopened(world.session, held(world), before)
    world.commit()
    # the writer knows of no end: its next partition opens a transaction anew, with the same producer id and epoch
    _produce(writer, 1)
    found = world.session.coordinator.describe([name])[name]
    assert (found.state, found.is_open, world.visible()) == (state, True, ["v"])
    (row,) = world.session.ledger.transactions(world.load, 1)
    # had the open one begun in front of the recorded last offset, it could be the committed one: left alone
    ahead = replace(row, writes=(replace(writes[0], partition=1, last_offset=10**6),))
    # and so it could while nobody has seen the commit's markers
    for doubtful in (ahead, replace(row, outcome=None)):
        doctored: Any = SimpleNamespace(transactions=lambda *_, one=doubtful: [one])
        assert not zombie_reopened(replace(world.session, ledger=doctored), held(world), found)
    assert cleaned(world) == [name]
    assert (world.open_ids(), world.visible()) == ([], ["v"])
    assert row.outcome is Outcome.COMMITTED
    # the same once the ledger has forgotten the transaction: what of the load is in each partition tells enough
    assert [done.transactions for done in world.session.ledger.prune(timedelta(0))] == [1]
    _produce(writer, 2)
    found = world.session.coordinator.describe([name])[name]
    assert (found.state, found.is_open) == (state, True)
    ahead = replace(row, writes=(replace(writes[0], partition=2, last_offset=10**6),))
    doctored = SimpleNamespace(summary=lambda *_: summary_of([ahead]))
    assert not zombie_reopened(replace(world.session, ledger=doctored), held(world), found)
    assert cleaned(world) == [name]
    assert (world.open_ids(), world.visible(), world.session.ledger.state(world.load)) == (
        [], ["v"], LoadState.COMMITTED,
    )  # fmt: skip


def held(world: World) -> AttemptRow:
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None
    return row


def cleaned(world: World) -> list[str]:
    """What a cleanup has ended."""
    poll = CleanPoll(world.load, up_to=1, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    return poll.aborted
