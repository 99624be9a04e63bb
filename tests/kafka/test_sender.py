"""The sender's decisions, answer by answer: no socket, the brokers' answers are given by hand."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.errors import SupersededError, TopicError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.arrow import sender as module
from airflow_kafka_eos.kafka.producer.arrow.sender import Enrolment, Sender
from airflow_kafka_eos.kafka.producer.interface import Tally
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.kafka.records.batch import SealedBatch
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition

NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
CONCURRENT_TRANSACTIONS = 51
UNKNOWN_TOPIC_OR_PARTITION = 3
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


Answered = Callable[[Any, Exception | None], None]


class HandWire:
    """Takes requests; whoever tests answers them."""

    def __init__(self) -> None:
        self.under_way: list[tuple[SealedBatch, Answered]] = []
        self.leaderless: set[TopicPartition] = set()
        self.enrolled: list[TopicPartition] = []
        #: as they are asked for by Enrolment
        self.transaction_version_of_all = 2
        self.unreached: set[int] = set()
        self.answers: list[int] = []

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {0: (0, 13)}

    def transaction_version(self) -> int:
        return self.transaction_version_of_all

    def is_reached(self, node_id: int) -> bool:
        return node_id not in self.unreached

    def coordinators(self, ids: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(ids, 1)

    def forget_coordinators(self, ids: Iterable[str]) -> None:
        pass

    def until_settled(self, attempt: Callable[[], None], **_: object) -> None:
        while True:
            try:
                return attempt()
            except retry.Retry:
                self.unreached.clear()

    def send_to_coordinator(self, name: str, request: Any) -> SimpleNamespace:
        row = SimpleNamespace(partition_index=0, partition_error_code=self.answers.pop(0))
        topic = SimpleNamespace(name="t", results_by_partition=[row])
        return SimpleNamespace(results_by_topic_v3_and_below=[topic])

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
    enrolment: Any = SimpleNamespace(
        transactional_id="id", produce_versions=(12, 12), enrol=wire.enrolled.extend, looks_at_produce=False,
        note_begun=lambda: None,
    )  # fmt: skip
    return made(wire, enrolment)


def made(wire: HandWire, enrolment: Enrolment) -> Sender:
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


# -- whoever begins a transaction looks right before (rule: writers-have-a-deadline) -----------------------------------


class Looks:
    """Counts them; the last one finds that the attempt is over."""

    def __init__(self, good: int = 100) -> None:
        self.good, self.made = good, 0

    def __call__(self) -> None:
        self.made += 1
        if self.made > self.good:
            raise SupersededError("it is over")


def looking(wire: HandWire, looks: Looks) -> Sender:
    return made(wire, Enrolment(wire, "id", PreparedTxnState(1, 0), shared=False, look=looks))  # type: ignore[arg-type]


def test_each_produce_that_may_begin_the_transaction_is_behind_a_look(wire: HandWire, clock: SimpleNamespace) -> None:
    looks = Looks()
    sender = looking(wire, looks)
    hand_over(sender, [0])
    turn(sender, clock)
    assert (looks.made, wire.orders) == (1, [0])
    wire.answer(0, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    turn(sender, clock)
    assert (looks.made, wire.orders) == (2, [0]), "what is sent again, too"
    wire.answer(0, 0)
    hand_over(sender, [1])
    turn(sender, clock)
    assert (looks.made, wire.orders) == (2, [1]), "it has begun: whoever ends it raises the epoch"


def test_behind_a_look_that_fails_nothing_is_sent(wire: HandWire, clock: SimpleNamespace) -> None:
    sender = looking(wire, Looks(good=1))
    hand_over(sender, [0])
    turn(sender, clock)
    wire.answer(0, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    with pytest.raises(SupersededError):
        turn(sender, clock)
    assert wire.orders == []


def test_no_look_is_made_for_what_would_wait_for_a_connection(wire: HandWire, clock: SimpleNamespace) -> None:
    """It would be sent once that is made, however old the look is by then."""
    looks = Looks()
    sender = looking(wire, looks)
    wire.unreached = {1}
    hand_over(sender, [0])
    turn(sender, clock)
    assert (looks.made, wire.orders) == (0, [])
    wire.unreached = set()
    turn(sender, clock)
    assert (looks.made, wire.orders) == (1, [0])


def test_each_announcement_of_partitions_is_behind_a_look(wire: HandWire, clock: SimpleNamespace) -> None:
    """On transaction version 1 it begins anew what somebody has ended, under the same epoch."""
    wire.transaction_version_of_all, wire.answers, wire.unreached = 1, [CONCURRENT_TRANSACTIONS, 0, 0], {1}
    looks = Looks(good=2)
    sender = looking(wire, looks)
    hand_over(sender, [0])
    turn(sender, clock)
    assert (looks.made, wire.orders) == (2, [0]), "what is announced again, too"
    wire.answer(0, 0)
    hand_over(sender, [0], TWO)
    with pytest.raises(SupersededError):
        turn(sender, clock)
    assert wire.answers == [0], "the second partition was not announced"
