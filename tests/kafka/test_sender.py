"""The sender's decisions, answer by answer: no socket, the brokers' answers are given by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.errors import TopicError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.arrow import sender as module
from airflow_kafka_eos.kafka.producer.arrow.sender import Sender
from airflow_kafka_eos.kafka.producer.interface import Tally
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.kafka.records.batch import SealedBatch
from airflow_kafka_eos.transaction import TopicPartition

NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
UNKNOWN_TOPIC_OR_PARTITION = 3
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


Answered = Callable[[Any, Exception | None], None]


class HandWire:
    """Takes requests; whoever tests answers them."""

    def __init__(self) -> None:
        self.under_way: list[tuple[SealedBatch, Answered]] = []
        self.leaderless: set[TopicPartition] = set()
        self.enrolled: list[TopicPartition] = []

    def start(self, broker: int, request: Any, answered: Any) -> None:
        _broker, batches = answered.args
        self.under_way += [(batch, answered) for batch in batches]

    def leaders(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        if self.leaderless & set(partitions):
            raise retry.Retry("no leader")
        return dict.fromkeys(partitions, 1)

    def forget_leaders(self, partitions: Iterable[TopicPartition]) -> None:
        pass

    def metadata(self, topics: Iterable[str]) -> SimpleNamespace:
        partitions = [SimpleNamespace(partition_index=p) for p in (0, 1)]
        return SimpleNamespace(topics=[SimpleNamespace(error_code=0, name="t", partitions=partitions)])

    def answer(self, order: int, code: int, partition: TopicPartition = ONE) -> None:
        (found,) = [u for u in self.under_way if (u[0].partition, u[0].order) == (partition, order)]
        self.under_way.remove(found)
        row = SimpleNamespace(
            index=partition.partition, error_code=code, base_offset=-1 if code else order * 10, error_message=None
        )
        topic = SimpleNamespace(name="t", topic_id=uuid.UUID(int=1), partition_responses=[row])
        found[1](SimpleNamespace(responses=[topic]), None)

    @property
    def orders(self) -> list[int]:
        return [batch.order for batch, _ in self.under_way]


@pytest.fixture
def wire() -> HandWire:
    return HandWire()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


@pytest.fixture
def sender(wire: HandWire, clock: SimpleNamespace) -> Sender:
    enrolment: Any = SimpleNamespace(transactional_id="id", produce_versions=(12, 12), enrol=wire.enrolled.extend)
    options = ProducerOptions.from_settings(KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"}))
    return Sender(wire, enrolment, {"t": uuid.UUID(int=1)}, options, Tally())  # type: ignore[arg-type]


def hand_over(sender: Sender, orders: Iterable[int], partition: TopicPartition = ONE) -> None:
    sender._arrived.extend(SealedBatch(partition, o, o * 10, 10, [b""], 100) for o in orders)
    sender._take()


def turn(sender: Sender, clock: SimpleNamespace, seconds: float = 2.0) -> None:
    clock.s += seconds
    sender._dispatch(clock.s)
    sender._check_progress(clock.s)
    if sender._failure is not None:
        raise sender._failure


def test_batches_behind_one_that_failed_are_not_sent_ahead_of_its_next_copy(
    sender: Sender, wire: HandWire, clock: SimpleNamespace
) -> None:
    """The broker remembers five batches of a producer: behind five others, a copy of the first is a gap to it."""
    hand_over(sender, range(12))
    turn(sender, clock)
    assert wire.orders == [0, 1, 2, 3, 4]
    wire.answer(0, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    for order in (1, 2, 3, 4):
        wire.answer(order, 0)
    for _ in range(3):  # as often as it fails, it goes alone
        turn(sender, clock)
        assert wire.orders == [0]
        wire.answer(0, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    turn(sender, clock)
    wire.answer(0, 0)
    turn(sender, clock)
    assert wire.orders == [5, 6, 7, 8, 9]


def test_a_topic_is_not_gone_while_a_batch_is_on_its_way_to_its_leader(
    sender: Sender, wire: HandWire, clock: SimpleNamespace
) -> None:
    hand_over(sender, [0])
    turn(sender, clock)
    wire.answer(0, UNKNOWN_TOPIC_OR_PARTITION)
    turn(sender, clock)
    assert wire.orders == [0]
    turn(sender, clock, 30)  # the leader waits for a follower
    wire.answer(0, 0)
    turn(sender, clock)


def test_a_topic_that_no_broker_knows_for_long_is_gone(
    sender: Sender, wire: HandWire, clock: SimpleNamespace
) -> None:
    hand_over(sender, [0])
    turn(sender, clock)
    with pytest.raises(TopicError, match="deleted or recreated"):
        for _ in range(12):
            wire.answer(0, UNKNOWN_TOPIC_OR_PARTITION)
            sender._check_progress(clock.s)
            turn(sender, clock, 1)


def test_a_partition_without_a_leader_is_not_enrolled_and_keeps_no_other_waiting(
    sender: Sender, wire: HandWire, clock: SimpleNamespace
) -> None:
    wire.leaderless = {TWO}
    hand_over(sender, [0], TWO)
    hand_over(sender, [0])
    turn(sender, clock)
    assert wire.enrolled == [ONE]
    assert [batch.partition for batch, _ in wire.under_way] == [ONE]
    wire.leaderless = set()
    turn(sender, clock)
    assert wire.enrolled == [ONE, TWO]
