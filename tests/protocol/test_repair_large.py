"""Large transactions that were lost: they have all the time that brokers allow, and what cannot fit is said at once."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_kafka_eos.errors import TooLargeToCopyError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer import copier
from airflow_kafka_eos.kafka.producer.copier import Copier
from airflow_kafka_eos.kafka.records import stored
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.repair.copy import repair
from airflow_kafka_eos.protocol.repair.reprepare import open_repreparation
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import Outcome
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import decided, lose, state, write_rows
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker

AN_HOUR_MS = 3_600_000
#: too many to be read, checked (without the kernel) and sent in TOO_SHORT_MS, on any machine
MANY = 600_000
TOO_SHORT_MS = 200
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["4.4.0", "3.9.2"])
def broker(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    settings = {
        "transaction.max.timeout.ms": str(AN_HOUR_MS),
        # the broker looks for what has timed out once an hour: it ends nothing here
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(AN_HOUR_MS),
    }
    with LocalKafka(version=request.param, broker_settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def session(broker: LocalKafka, ledger_url: str) -> Iterator[Session]:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    with connect(settings, ledger_url, "large") as opened:
        yield opened


@pytest.fixture(autouse=True)
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a transaction that is too large for 0.2 s would have to be a large one."""
    monkeypatch.setattr(stored, "kernel", lambda: None)


@pytest.fixture
def world(session: Session, broker: LocalKafka) -> World:
    number = next(_numbers)
    broker.create_topic(f"large-{number}", partitions=2)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": broker.bootstrap_servers})
    return World(session, settings, f"large-{number}", LoadIdentity("large", "orders", f"key-{number}"))


def allow(broker: LocalKafka, timeout_ms: int) -> None:
    """Restart it with another ``transaction.max.timeout.ms``, as an operator does."""
    properties = Path(broker.log_file().parent, "server.properties")
    text = re.sub(r"(?m)^(transaction\.max\.timeout\.ms)=.*$", rf"\g<1>={timeout_ms}", properties.read_text())
    assert f"transaction.max.timeout.ms={timeout_ms}" in text
    properties.write_text(text)
    broker.restart()


def large_and_small(world: World) -> Manifest:
    """Decided: Spark partition 0 has many records, 1 has few."""
    ref = reference(world.session, world.open_attempt())
    many = pa.array([b"v"], pa.binary()).take(pa.array([0] * MANY))
    batches = {
        0: pa.RecordBatch.from_pydict({"value": many, "partition": pa.array([0] * MANY, pa.int32())}),
        1: pa.RecordBatch.from_pydict({"value": pa.array([b"w"]), "partition": pa.array([1], pa.int32())}),
    }
    entries = [
        write_rows(world, TransactionalId(ref.load, ref.ledger_id, ref.attempt, n, n), batch)
        for n, batch in batches.items()
    ]
    manifest = world.manifest(ref, entries)
    record_prepared(world.session, manifest)
    world.decide(manifest)
    return manifest


def committed(world: World) -> int:
    """Records that the ledger knows to be committed."""
    rows = world.session.ledger.transactions(world.load, 1)
    return sum(t.records for t in rows if t.outcome is Outcome.COMMITTED)


def test_a_repair_has_as_long_as_the_broker_allows(world: World) -> None:
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    commit_pass(world.session, world.load, 1)
    (lost,) = world.session.ledger.transactions(world.load, 1)
    assert repair(world.session, world.load, 1, lost, by="r")
    (row,) = world.session.ledger.repairs(world.load)
    described = world.session.coordinator.describe([row.transactional_id])
    assert described[row.transactional_id].timeout_ms == AN_HOUR_MS
    world.commit()
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)


def test_where_the_limit_is_not_shown_the_longest_that_is_taken_is_found(world: World) -> None:
    """DESCRIBE_CONFIGS on the Cluster is not of the least set of ACLs."""
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    commit_pass(world.session, world.load, 1)
    (lost,) = world.session.ledger.transactions(world.load, 1)
    opened = world.session.ledger.open_repair(world.load, 1, lost.transaction.transactional_id, opened_by="r")
    assert opened is not None
    name = TransactionalId.parse(opened.transactional_id)
    assert name is not None
    copier = Copier(
        world.session.partitions.wire,
        name,
        timeout_ms=86_400_000,
        or_less=(2 * AN_HOUR_MS, AN_HOUR_MS, 1000),
        deadline_ms=int(time.time() * 1000) + 60_000,
    )
    new, writes = copier.copy(lost.transaction, lost.writes, lost.topic_ids)
    copier.close()
    assert copier.timeout_ms == AN_HOUR_MS
    assert world.session.coordinator.describe([str(name)])[str(name)].timeout_ms == AN_HOUR_MS
    assert world.session.ledger.adopt(world.load, opened.number, new, writes).state is RepairState.ADOPTED
    world.commit()


def test_what_cannot_be_copied_in_time_is_said_before_anything_is_written_and_how_it_is_mended(
    world: World, broker: LocalKafka, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nobody stops the small one, whatever keeps this machine from copying it in 0.2 s: see the next test
    monkeypatch.setattr(copier, "PATIENCE", float("inf"))
    manifest = large_and_small(world)
    for transaction in manifest.transactions:
        lose(world, transaction)
    wait_until(lambda: not commit_pass(world.session, world.load, 1).open, "what was lost")
    allow(broker, TOO_SHORT_MS)
    with pytest.raises(TooLargeToCopyError) as caught:
        world.commit(deadline_s=120)
    said = str(caught.value)
    assert re.search(rf"takes {MANY:,} records, 0\.6 MB, about [\d.]+ s", said)
    for words in ("0.2 s that the brokers allow", "Raise transaction.max.timeout.ms", "Clear prepare"):
        assert words in said
    # the small one was copied, and nothing of the large one was begun
    assert (committed(world), world.open_ids(), state(world)) == (1, [], LoadState.REPAIRING)
    assert [r.state for r in world.session.ledger.repairs(world.load)] == [RepairState.ADOPTED]
    row = world.session.ledger.load(world.load)
    assert row is not None and "Raise transaction.max.timeout.ms" in row.reason
    # prepare may write it again, and hears how long that may take
    attempt = world.session.ledger.attempt(world.load, 1)
    assert attempt is not None
    # how long this machine took for its few bytes is nothing to rely on: say that it was 90 s
    submitted = "2026-11-24T10:00:00+00:00"
    slow = replace(attempt, submitted_at=submitted, prepared_at="2026-11-24T10:01:30+00:00")
    with caplog.at_level(logging.WARNING):
        again = open_repreparation(world.session, slow, by=RUN, hold_time_ms=600_000)
    assert again is not None and [part.spark_partition for part in again.parts] == [0]
    assert again.timeout_ms == TOO_SHORT_MS
    assert "prepare took 90 s, and the brokers let a transaction stay open for 0.2 s" in caplog.text
    assert "Raise transaction.max.timeout.ms to 180000 on every broker" in caplog.text
    allow(broker, AN_HOUR_MS)
    world.commit(deadline_s=120)
    assert (committed(world), world.open_ids(), state(world)) == (MANY + 1, [], LoadState.COMMITTED)
    assert re.search(rf"copies it: {MANY:,} records, 0\.6 MB, about [\d.]+ s; it may take 3600 s at most", caplog.text)


@pytest.mark.parametrize("broker", ["4.4.0"], indirect=True)
def test_a_copy_that_goes_too_slowly_is_stopped_before_the_broker_does(world: World) -> None:
    manifest = large_and_small(world)
    large = manifest.transactions[0]
    lose(world, large)
    commit_pass(world.session, world.load, 1)
    rows = world.session.ledger.transactions(world.load, 1)
    (lost,) = (t for t in rows if t.transaction == large)
    opened = world.session.ledger.open_repair(world.load, 1, large.transactional_id, opened_by="r")
    assert opened is not None
    name = TransactionalId.parse(opened.transactional_id)
    assert name is not None
    copier = Copier(
        world.session.partitions.wire, name, timeout_ms=TOO_SHORT_MS, deadline_ms=int(time.time() * 1000) + 60_000
    )
    with pytest.raises(TooLargeToCopyError, match=rf"of {MANY:,} records took [\d.]+ s.*Raise transaction\.max"):
        copier.copy(lost.transaction, lost.writes, lost.topic_ids)
    world.session.ledger.abandon_repair(world.load, opened.number, reason="too slow")
    copier.abort()
    copier.close()
    wait_until(lambda: world.open_ids() == [], "the end of the copy")
    world.commit(deadline_s=120)
    assert (committed(world), state(world)) == (MANY + 1, LoadState.COMMITTED)


@pytest.mark.parametrize("broker", ["4.4.0"], indirect=True)
def test_what_is_copied_is_committed_before_a_large_one_is_begun(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of the one that is copied first runs while the others are."""
    manifest = large_and_small(world)
    for transaction in manifest.transactions:
        lose(world, transaction)
    seen = []
    real = Copier.copy

    def copy(self: Copier, *arguments: object) -> object:
        seen.append((arguments[0], committed(world)))
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Copier, "copy", copy)
    world.commit(deadline_s=120)
    large, small = manifest.transactions
    assert seen == [(small, 0), (large, 1)]
    assert (committed(world), state(world)) == (MANY + 1, LoadState.COMMITTED)
