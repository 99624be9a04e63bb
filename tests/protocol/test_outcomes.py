"""Each outcome, produced on real brokers of transaction versions 1 and 2, and recognised by the log.

Rule: log-is-the-evidence.

The broker forgets ids after some seconds, and is restarted on the way: its coordinator loads anew, as in a fail-over.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.evidence import evidence
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.sandbox.broker import TRANSACTION_LOG_PARTITIONS
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import (
    MAX_PRODUCER_EPOCH,
    CoordinatorState,
    Marker,
    Outcome,
    PreparedTransaction,
    judge,
    judge_decided,
)
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import decided, lose, read, rows, state, write_rows
from tests.protocol.world import World

pytestmark = pytest.mark.broker

EXPIRY_MS = 4000


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalKafka, World]]:
    folder = tmp_path_factory.mktemp("outcomes")
    url = f"sqlite:///{folder}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    settings = {
        "transactional.id.expiration.ms": str(EXPIRY_MS),
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    with LocalKafka(version=request.param, broker_settings=settings, data_dir=Path(folder) / "kafka") as kafka:
        client = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        with connect(client, url, "test") as session:
            yield kafka, World(session, client, "", LoadIdentity("test", "orders", "k"), 60_000)
        kafka.kill()


def world_of(place: tuple[LocalKafka, World], name: str, **changes: Any) -> World:
    kafka, base = place
    kafka.create_topic(name, partitions=2)
    return replace(base, topic=name, load=LoadIdentity("test", "orders", name), **changes)


def outcomes(world: World) -> list[Outcome | None]:
    """By Spark partition."""
    return [t.outcome for t in world.session.ledger.transactions(world.load, 1)]


def settle(world: World) -> None:
    wait_until(lambda: not commit_pass(world.session, world.load, 1).open, "the commit of what is there")


def test_committed_open_lost_superseded(place: tuple[LocalKafka, World]) -> None:
    world = world_of(place, "all")
    manifest = decided(world, 3)
    known = world.session.ledger.transactions(world.load, 1)
    found = [judge_decided(evidence(world.session, t).values()) for t in known]
    assert found == [Outcome.OPEN] * 3
    lose(world, manifest.transactions[1])
    settle(world)
    assert outcomes(world) == [Outcome.COMMITTED, Outcome.LOST, Outcome.COMMITTED]
    world.commit()
    assert outcomes(world).count(Outcome.SUPERSEDED) == 1
    assert len(read(world, "read_committed")) == manifest.records
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)


def test_aborted_of_an_attempt_that_was_not_decided_to_be_committed(place: tuple[LocalKafka, World]) -> None:
    world = world_of(place, "undecided")
    manifest = world.prepare(["a"])
    world.session.ledger.decide_abort(manifest.attempt, decided_by="x", reason="x")
    lose(world, manifest.transactions[0])
    (row,) = world.session.ledger.transactions(world.load, 1)
    assert judge(evidence(world.session, row).values()) is Outcome.ABORTED


def test_lost_by_timeout_before_the_decision_is_refused_and_behind_it_repaired(place: tuple[LocalKafka, World]) -> None:
    before = world_of(place, "before", timeout_ms=1500)
    manifest = before.prepare(["a"], ["b"])
    behind = world_of(place, "behind", timeout_ms=6000)
    late = decided(behind, 1)
    wait_until(lambda: before.open_ids() + behind.open_ids() == [], "the timeouts")
    with pytest.raises(UndecidableError, match=r"not Ongoing|unknown to its coordinator|is open as"):
        before.decide(manifest)
    assert before.visible() == []
    behind.commit()
    assert len(read(behind, "read_committed")) == late.records
    assert outcomes(behind).count(Outcome.SUPERSEDED) == 1


def test_ids_that_expired_leave_the_log_to_tell(place: tuple[LocalKafka, World]) -> None:
    world = world_of(place, "expired")
    manifest = decided(world, 2)
    lost, good = manifest.transactions
    lose(world, lost)
    world.session.coordinator.end(good, Verdict.COMMIT)  # and the answer is lost, and nobody comes for a week
    names = [t.transactional_id for t in (lost, good)]
    wait_until(lambda: world.session.coordinator.describe(names) == {}, "the expiry", 60)
    settle(world)
    assert outcomes(world) == [Outcome.LOST, Outcome.COMMITTED]
    world.commit()
    assert len(read(world, "read_committed")) == manifest.records
    assert state(world) is LoadState.COMMITTED


def test_what_follows_under_the_same_producer_id_is_not_taken_for_ours(place: tuple[LocalKafka, World]) -> None:
    """A pooled id's next transaction: with transaction version 1, and librdkafka, of the same epoch too."""
    world = world_of(place, "pooled")
    kafka, _ = place
    ours = str(TransactionalId(world.load, world.session.ledger.ledger_id, 1, 0, 0))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": ours})
    producer.init_transactions(30)
    ids = {world.topic: world.session.partitions.topic_info([world.topic])[world.topic].topic_id}
    seen = []
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(world.topic, b"x", partition=0)
        producer.flush(30)
        found = world.session.coordinator.describe([ours])[ours].state
        (tp,) = world.session.coordinator.describe([ours])[ours].partitions
        last = world.session.partitions.end_offsets([tp])[tp] - 1
        seen.append((found, {tp: last}))
        end(30)
    expected = [Marker.COMMIT, Marker.ABORT, Marker.COMMIT]
    for (found, ends), marker in zip(seen, expected, strict=True):
        wait_until(
            lambda found=found, last=ends, marker=marker: list(  # type: ignore[misc]
                world.session.partitions.markers(
                    found.producer_id, last, ids, producer_epoch=found.producer_epoch
                ).values()
            )
            == [marker],
            f"the marker {marker}",
        )


def test_epochs_that_run_out_and_a_coordinator_that_loads_anew(place: tuple[LocalKafka, World]) -> None:
    """The last epochs of a producer id, whatever ends them; the next transaction has another producer id."""
    kafka, _ = place
    world = world_of(place, "exhausted")
    session, ledger_id = world.session, world.session.ledger.ledger_id
    name = TransactionalId(world.load, ledger_id, 1, 0, 0)
    first = session.coordinator.init_producer_id(str(name), 60_000)
    _set_epoch(kafka, str(name), first.producer_id, MAX_PRODUCER_EPOCH - 5)
    kafka.restart()
    wait_until(lambda: _epoch(world, name) == MAX_PRODUCER_EPOCH - 5, "the coordinator's loading", 60)
    ids = {world.topic: session.partitions.topic_info([world.topic])[world.topic].topic_id}
    producer_ids, epochs = [], []
    runs_out = 4 if kafka.version.startswith("3.") else 2  # with transaction version 2 each end takes one too
    for number in range(7):
        timed_out = number == runs_out
        entry = write_rows(replace(world, timeout_ms=4000 if timed_out else 60_000), name, rows(number, 4))
        assert entry.transaction is not None
        state = entry.transaction.state
        verdict = Verdict.COMMIT if number % 2 else Verdict.ABORT
        if not timed_out:
            session.coordinator.end(PreparedTransaction(str(name), state), verdict)
        wait_until(lambda: world.open_ids() == [], "the end")
        last = {w.topic_partition: w.last_offset for w in entry.writes}
        found = session.partitions.markers(state.producer_id, last, ids, producer_epoch=state.producer_epoch)
        assert set(found.values()) == {Marker(verdict.value)}, (number, str(state))
        producer_ids.append(state.producer_id)
        epochs.append(state.producer_epoch)
    assert producer_ids[0] == first.producer_id != producer_ids[-1]
    assert max(epochs) >= MAX_PRODUCER_EPOCH - 3 and min(epochs) < 10


def _epoch(world: World, name: TransactionalId) -> int:
    seen = world.session.coordinator.describe([str(name)]).get(str(name))
    return -1 if seen is None or seen.coordinator_state is not CoordinatorState.EMPTY else seen.state.producer_epoch


def _set_epoch(kafka: LocalKafka, name: str, producer_id: int, epoch: int) -> None:
    """As if the id had been initialised 32,000 times: what its coordinator reads from its log when it loads."""
    hashed = 0
    for char in name:  # Java's String.hashCode
        hashed = (31 * hashed + ord(char)) & 0xFFFFFFFF
    signed = hashed - (1 << 32) if hashed >= 1 << 31 else hashed
    partition = abs(signed) % TRANSACTION_LOG_PARTITIONS
    key = struct.pack(">hh", 0, len(name)) + name.encode()
    moment = int(time.time() * 1000) + 120_000  # or it would expire while the broker starts
    # version, producer id and epoch, timeout, status Empty, no partitions, last update, start
    value = struct.pack(">hqhibiqq", 0, producer_id, epoch, 60_000, 0, -1, moment, -1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "__admin_client"})
    errors: list[object] = []
    producer.produce(
        "__transaction_state", value, key, partition=partition, on_delivery=lambda e, _: errors.append(e)
    )
    producer.flush(30)
    assert errors == [None]
