"""Loads into compacted topics, with the cleaner at work: what can still be told, and what a person is told.

Rule: compacted-is-doubt.

Where nothing can be told it is IN_DOUBT, at once: never COMMITTED, never "open" for ever.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer.fetch import FetchRequest

from airflow_kafka_eos.errors import BrokerUnavailableError, InDoubtError, KafkaEosError, RecordsGoneError
from airflow_kafka_eos.kafka.admin.find_markers import Evidence
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records.scan import Sought
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.evidence import evidence, missing_for_good
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import Marker, PreparedTransaction, TopicPartition
from airflow_kafka_eos.two_phase_commit.recipe import _may_be_committed
from tests.kafka.open_transactions import wait_until
from tests.protocol.cleaned import (
    FILLER,
    TOPIC,
    Writer,
    clean_until,
    decided_by_hand,
    eager_kafka,
    left_of,
    log_of,
    write_again,
)
from tests.protocol.lost import state
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker
_numbers = itertools.count(1)
A_DAY = {"delete.retention.ms": "86400000"}
A_DAYS_LAG = {"min.compaction.lag.ms": "86400000", "max.compaction.lag.ms": "172800000"}


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def eager(request: pytest.FixtureRequest, ledger_url: str) -> Iterator[tuple[LocalKafka, Session]]:
    with eager_kafka(request.param) as kafka:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        with connect(settings, ledger_url, "compacted") as session:
            yield kafka, session


def world_on(eager: tuple[LocalKafka, Session], config: Mapping[str, str] | None = None) -> World:
    kafka, session = eager
    number = next(_numbers)
    kafka.create_topic(f"compacted-{number}", partitions=2, config=TOPIC | dict(config or {}))
    load = LoadIdentity("compacted", "orders", f"key-{number}")
    return World(session, session.partitions.wire.settings, f"compacted-{number}", load)


@pytest.fixture
def world(eager: tuple[LocalKafka, Session]) -> World:
    return world_on(eager)


def end(writer: Writer, verdict: Verdict) -> None:
    """By the recorded identity; and then nobody looks."""
    writer.world.session.coordinator.end(PreparedTransaction(writer.name, writer.state), verdict)
    wait_until(lambda: writer.name not in writer.world.open_ids(), "the end of the transaction")


def all_is_gone(world: World, writer: Writer, *partitions: int) -> None:
    clean_until(
        world,
        lambda: not any(left_of(world, writer.state, p) for p in partitions),
        "the end of the last batch and the marker",
    )


def swept(world: World) -> KafkaEosError | None:
    """What cleanup says."""
    poll = CleanPoll(world.load, up_to=1, by=RUN, quiet_s=0)
    try:
        for _ in range(100):
            if poll(world.session) is None:
                return poll.problem
    except KafkaEosError as e:
        return e
    raise AssertionError("cleanup waits for ever")


def test_a_lost_load_whose_records_and_marker_are_gone_is_in_doubt_with_the_whole_story(world: World) -> None:
    """It was COMMITTING for ever: "no commit marker … Nothing is lost", and cleanup called it open."""
    writer = decided_by_hand(world, b"a", b"b")
    end(writer, Verdict.ABORT)
    all_is_gone(world, writer, 0)
    with pytest.raises(InDoubtError) as caught:
        world.commit(deadline_s=5)
    said = str(caught.value)
    w = writer.writes[0]
    for part in (
        str(world.load), "attempt 1", writer.name, str(writer.state), f"{world.topic}-0",
        f"offsets {w.first_offset} to {w.last_offset}", "compaction took its records", "its coordinator shows",
        "EndTxn (commit) was answered", "readers to", "loads give-up", "loads show",
    ):  # fmt: skip
        assert part in said, (part, said)
    assert state(world) is LoadState.IN_DOUBT
    row = world.session.ledger.load(world.load)
    assert row is not None and "compaction took its records" in row.reason
    assert isinstance(swept(world), InDoubtError)
    assert set(world.visible()) <= {FILLER.decode()}


def test_a_committed_load_whose_keys_were_written_again_is_in_doubt_when_nobody_looked_in_time(world: World) -> None:
    """Nothing tells it from a lost one any more. It never was COMMITTED, nor anything else."""
    writer = decided_by_hand(world, b"a")
    end(writer, Verdict.COMMIT)
    write_again(world, b"a")
    all_is_gone(world, writer, 0)
    with pytest.raises(InDoubtError, match="compaction took its records"):
        world.commit(deadline_s=5)
    assert state(world) is LoadState.IN_DOUBT


def test_one_batch_that_is_left_proves_the_commit(world: World) -> None:
    """Compaction keeps a marker as long as any batch of its transaction remains."""
    writer = decided_by_hand(world, b"stays", b"goes")
    end(writer, Verdict.COMMIT)
    write_again(world, b"goes")
    clean_until(world, lambda: left_of(world, writer.state) == ["data", "marker"], "the end of the last batch")
    (row,) = world.session.ledger.transactions(world.load, 1)
    tp, w = TopicPartition(world.topic, 0), writer.writes[0]
    sought = Sought(writer.state.producer_id, writer.state.producer_epoch, w.last_offset, w.first_offset)

    class FarFromTheFirst(Wire):
        def send_to_broker(self, node_id: int, request: Any) -> Any:
            if isinstance(request, FetchRequest) and request.topics[0].partitions[0].fetch_offset == w.first_offset:
                raise BrokerUnavailableError("its leader is away", remedy="Wait")
            return super().send_to_broker(node_id, request)

    with FarFromTheFirst(world.settings, timeout_s=2) as wire:
        found, error, _ = Partitions(wire).markers_of({tp: [sought]}, row.topic_ids)
    # a batch that cannot be looked for now is no doubt
    assert (found, type(error)) == ({tp: {}}, BrokerUnavailableError)
    world.commit()
    assert state(world) is LoadState.COMMITTED


def test_the_next_transaction_of_a_producer_is_not_taken_for_an_aborted_one_whose_end_is_gone(
    world: World,
) -> None:
    """Transaction version 1 clients keep the epoch: nothing in the marker tells the two apart."""
    writer = decided_by_hand(world, b"a")
    writer.producer.abort_transaction(30)
    writer.producer.begin_transaction()
    later = writer.write(b"zombie")
    assert world.session.coordinator.describe([writer.name])[writer.name].state == writer.state
    writer.producer.commit_transaction(30)
    write_again(world, b"zombie")

    def left() -> list[int]:
        return [b.base_offset for b in log_of(world) if b.producer_id == writer.state.producer_id]

    # its commit marker is the last to go; nobody writes then, so that it stays
    clean_until(world, lambda: all(offset > later for offset in left()), "the end of all but the last marker")
    (row,) = world.session.ledger.transactions(world.load, 1)
    tp = TopicPartition(world.topic, 0)
    assert evidence(world.session, row)[tp] in (Marker.COMPACTED, Marker.COMPACTED_THEN_COMMIT)
    with pytest.raises(InDoubtError, match="compaction took its records"):
        world.commit(deadline_s=5)
    assert state(world) is LoadState.IN_DOUBT


@pytest.mark.parametrize("verdict", [Verdict.COMMIT, Verdict.ABORT])
def test_a_marker_that_is_too_young_to_be_gone_is_our_own_though_our_records_are(
    eager: tuple[LocalKafka, Session], verdict: Verdict
) -> None:
    """delete.retention.ms keeps it for a day: a lost load is repaired, a committed one COMMITTED."""
    world = world_on(eager, A_DAY)
    writer = decided_by_hand(world, b"a")
    end(writer, verdict)
    write_again(world, b"a")
    clean_until(world, lambda: left_of(world, writer.state) == ["marker"], "the end of the records")
    (row,) = world.session.ledger.transactions(world.load, 1)
    tp = TopicPartition(world.topic, 0)
    follows = Marker.COMPACTED_THEN_COMMIT if verdict is Verdict.COMMIT else Marker.COMPACTED_THEN_ABORT
    assert evidence(world.session, row) == {tp: follows}  # of an attempt that may have ended at any time
    if verdict is Verdict.COMMIT:
        world.commit()
        assert state(world) is LoadState.COMMITTED
    else:
        with pytest.raises(RecordsGoneError, match="Clear prepare"):
            world.commit()
        assert state(world) is LoadState.REPAIRING


def test_an_old_marker_behind_records_that_are_gone_is_not_believed(
    eager: tuple[LocalKafka, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_on(eager, A_DAY)
    writer = decided_by_hand(world, b"a")
    end(writer, Verdict.COMMIT)
    write_again(world, b"a")
    clean_until(world, lambda: left_of(world, writer.state) == ["marker"], "the end of the records")
    tomorrow = SimpleNamespace(time=lambda: time.time() + 86_400)
    monkeypatch.setattr("airflow_kafka_eos.protocol.evidence.time", tomorrow)
    with pytest.raises(InDoubtError, match="a commit marker of its producer follows"):
        commit_pass(world.session, world.load, 1)
    # nor is it of no matter to a ledger that does not know of the decision
    (row,) = world.session.ledger.transactions(world.load, 1)
    assert _may_be_committed(world.session, row)


def test_what_has_ended_and_has_no_marker_is_in_doubt_not_open(world: World) -> None:
    """As where a broker lost its index of aborted transactions. Readers are past it, so nothing more comes."""
    writer = decided_by_hand(world, b"a")
    (row,) = world.session.ledger.transactions(world.load, 1)

    class Unmarked(Partitions):
        def markers_of(
            self, sought: Mapping[TopicPartition, Iterable[Sought]], *_: object
        ) -> Evidence:
            return Evidence({tp: dict.fromkeys(of, Marker.MISSING) for tp, of in sought.items()}, None)

    class HeldBack(Unmarked):
        def last_stable_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(tps, writer.writes[0].last_offset)

    unmarked = replace(world.session, partitions=Unmarked(world.session.partitions.wire))
    assert missing_for_good(unmarked, [row]) == {}  # its coordinator will end it
    end(writer, Verdict.COMMIT)
    # the leader may not be done with it: readers are not past it
    assert missing_for_good(replace(unmarked, partitions=HeldBack(world.session.partitions.wire)), [row]) == {}
    tp = TopicPartition(world.topic, 0)
    assert missing_for_good(unmarked, [row]) == {row.transaction.transactional_id: {tp: Marker.MISSING_FOR_GOOD}}
    with pytest.raises(InDoubtError, match="its log has no end marker"):
        replace(world, session=unmarked).commit(deadline_s=20)
    assert state(world) is LoadState.IN_DOUBT
    # and when the log is readable again it is what it was
    world.commit()
    assert state(world) is LoadState.COMMITTED


def test_decide_says_what_compaction_leaves_time_for(
    eager: tuple[LocalKafka, Session], caplog: pytest.LogCaptureFixture
) -> None:
    hasty, patient = world_on(eager), world_on(eager, A_DAY | A_DAYS_LAG)
    with caplog.at_level(logging.WARNING, logger="airflow_kafka_eos"):
        decided_by_hand(patient, b"a")
        assert "is compacted" not in caplog.text
        decided_by_hand(hasty, b"a")
    assert f"topic {hasty.topic} is compacted" in caplog.text
    assert "end markers are kept for 0 s" in caplog.text and "can be copied for 0 s only" in caplog.text
