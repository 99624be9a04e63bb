"""Scope ``load``: several writers fill one transaction, and none of them ends it (rule: scope-load-writes-once)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from airflow_kafka_eos.errors import ConfigurationError, ProducerFencedError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.arrow.writer import ArrowWriter
from airflow_kafka_eos.kafka.producer.interface import TransactionWriter
from airflow_kafka_eos.kafka.producer.writers import describe_once
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState
from tests.kafka.arrow_support import batch
from tests.kafka.writers_support import (
    LEDGER,
    Record,
    an_id,
    consume,
    end,
    is_open,
    opened,
    settings_of,
    target_of,
    writes_of,
)

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module", params=["4.4.0", "3.9.2"])
def broker(request: pytest.FixtureRequest, kafka: LocalKafka) -> Iterator[LocalKafka]:
    if request.param == kafka.version:
        yield kafka
    else:
        with LocalKafka(version=request.param) as running:
            yield running


class SharedLoad:
    """A topic of 4 partitions, and the identity of the transaction that its writers share."""

    def __init__(self, broker: LocalKafka) -> None:
        self.broker = broker
        self.topic = f"shared-{time.monotonic_ns()}"
        self.settings = settings_of(broker.bootstrap_servers)
        self.name = an_id(self.topic)
        broker.create_topic(self.topic, partitions=4)
        self.state = self.init()

    def init(self) -> PreparedTxnState:
        with Wire(self.settings) as wire:
            coordinator = Coordinator(wire, namespace="tests", ledger_id=LEDGER)
            return coordinator.init_producer_id(str(self.name), 60_000)

    def writer(self) -> AbstractContextManager[TransactionWriter]:
        return opened("arrow", self.settings, target_of(self.name, {self.topic: 4}, shared=self.state))

    def committed(self, count: int) -> list[Record]:
        end(self.settings, PreparedTransaction(str(self.name), self.state))
        assert not is_open(self.settings, self.name)
        return consume(self.broker.bootstrap_servers, self.topic, 4, count, "read_committed")


@pytest.fixture
def load(broker: LocalKafka) -> Iterator[SharedLoad]:
    one = SharedLoad(broker)
    yield one
    end(one.settings, PreparedTransaction(str(one.name), one.state), Verdict.ABORT)


def test_writers_on_partitions_of_their_own_fill_one_transaction(
    broker: LocalKafka, load: SharedLoad
) -> None:
    reported: list[PartitionWrites] = []
    with load.writer() as one, load.writer() as two:
        for n in range(10):
            one.write(batch(value=[b"%d" % n] * 300, partition=[0, 1, 0] * 100))
            two.write(batch(value=[b"%d" % n] * 300, partition=[2, 3, 3] * 100))
        for writer in (one, two):
            prepared, writes = writer.prepare()
            assert (prepared.transactional_id, prepared.state) == (str(load.name), load.state)
            reported += writes
            writer.close()
    seen = describe_once(load.settings, load.name)
    assert seen is not None
    assert (seen.state, len(seen.partitions)) == (load.state, 4)
    assert consume(broker.bootstrap_servers, load.topic, 4, 0, "read_committed") == []
    records = load.committed(6000)
    assert len(records) == 6000
    assert tuple(reported) == writes_of(load.topic, records)


def test_it_initialises_nothing_and_ends_nothing(load: SharedLoad) -> None:
    # initialising would abort what the other writers have written; aborting too
    with load.writer() as one:
        one.write(batch(value=[b"v"], partition=[0]))
        one.prepare()
        with load.writer() as two:
            two.write(batch(value=[b"w"], partition=[1]))
            two.prepare()
            two.abort()
        one.abort()
    assert is_still_open(load)
    assert [(r.partition, r.value) for r in sorted(load.committed(2))] == [(0, b"v"), (1, b"w")]


def is_still_open(load: SharedLoad) -> bool:
    seen = describe_once(load.settings, load.name)
    assert seen is not None
    return seen.coordinator_state.value == "Ongoing" and seen.state == load.state


def test_a_second_writer_of_a_partition_is_refused(load: SharedLoad) -> None:
    # a second attempt of a Spark task: its records could not be told from the first one's
    with load.writer() as one:
        one.write(batch(value=[b"v"], partition=[0]))
        one.prepare()
    known = f"{load.topic}-0 has records of producer id and epoch"
    with load.writer() as again, pytest.raises(ProducerFencedError, match=known):
        again.write(batch(value=[b"v"] * 2, partition=[1, 0]))
        again.prepare()
    assert is_still_open(load)


def test_a_first_writer_that_died_is_known_too(load: SharedLoad) -> None:
    # it never reported: what the leader remembers is all there is
    with load.writer() as one:
        one.write(batch(value=[b"v" * 900_000] * 3, partition=[2] * 3))
        assert isinstance(one, ArrowWriter) and one._sender is not None
        one._sender.flush()
    with load.writer() as again, pytest.raises(ProducerFencedError, match=f"{load.topic}-2"):
        again.write(batch(value=[b"v"], partition=[2]))
        again.prepare()


def test_a_transaction_that_was_ended_meanwhile_is_not_reported(load: SharedLoad) -> None:
    with load.writer() as one:
        one.write(batch(value=[b"v"], partition=[0]))
        assert isinstance(one, ArrowWriter) and one._batcher is not None and one._sender is not None
        for sealed in one._batcher.finish():
            one._sender.put(sealed)
        one._sender.flush()
        end(load.settings, PreparedTransaction(str(load.name), load.state), Verdict.ABORT)
        assert not is_open(load.settings, load.name)
        with pytest.raises(ProducerFencedError, match="coordinator shows"):
            one.prepare()


def test_a_new_identity_fences_the_writers_of_the_old_one(load: SharedLoad) -> None:
    with load.writer() as one:
        load.init()
        # with transaction version 1 it is AddPartitionsToTxn that is refused, else Produce
        with pytest.raises(ProducerFencedError, match=rf"{load.topic}-1"):
            one.write(batch(value=[b"v"], partition=[1]))
            one.prepare()


def test_only_the_arrow_writer_can_share(load: SharedLoad) -> None:
    # librdkafka can only begin a transaction of its own, which would end the shared one
    target = target_of(load.name, {load.topic: 4}, shared=load.state)
    with pytest.raises(ConfigurationError, match="writer=arrow"), opened("confluent", load.settings, target):
        pass
    seen = describe_once(load.settings, load.name)
    assert seen is not None and seen.state == load.state  # it has initialised nothing
