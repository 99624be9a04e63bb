"""Real open transactions for tests: written by confluent-kafka, left open."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Producer
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import TransactionalId, prefix
from airflow_kafka_eos.transaction import PreparedTransaction, TopicPartition

LEDGER = "0123456789"


def settings_of(bootstrap_servers: str) -> KafkaSettings:
    return KafkaSettings.from_mapping({"bootstrap.servers": bootstrap_servers})


def coordinator_of(wire: Wire, namespace: str = "airflow", ledger_id: str = LEDGER) -> Coordinator:
    return Coordinator(wire, namespace=namespace, ledger_id=ledger_id)


def an_id(key: str, partition: int = 0, *, namespace: str = "airflow", ledger_id: str = LEDGER) -> str:
    return str(TransactionalId(LoadIdentity(namespace, "orders", key), ledger_id, 1, partition, 100 + partition))


def a_prefix(key: str) -> str:
    return prefix(LoadIdentity("airflow", "orders", key), LEDGER)


def begin(bootstrap_servers: str, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    return producer


def write(producer: Producer, records: Mapping[TopicPartition, int], size: int = 10) -> dict[TopicPartition, int]:
    """Write so many records to each partition; returns the offset of the last one of each."""
    last: dict[TopicPartition, int] = {}

    def delivered(error: object, message: Any) -> None:
        assert error is None, error
        tp = TopicPartition(message.topic(), message.partition())
        last[tp] = max(message.offset(), last.get(tp, -1))

    for tp, count in records.items():
        for number in range(count):
            producer.produce(
                tp.topic, b"%d" % number + b"x" * size, partition=tp.partition, on_delivery=delivered
            )
            producer.poll(0)
    assert producer.flush(30) == 0
    return last


def prepare(
    coordinator: Coordinator,
    bootstrap_servers: str,
    transactional_id: str,
    records: Mapping[TopicPartition, int],
    timeout_ms: int = 60_000,
) -> tuple[PreparedTransaction, dict[TopicPartition, int]]:
    """An open transaction whose producer is gone, and the offset of its last record in each partition."""
    last = write(begin(bootstrap_servers, transactional_id, timeout_ms), records)
    described = coordinator.describe([transactional_id])[transactional_id]
    return PreparedTransaction(transactional_id, described.state), last


def holding_back(settings: KafkaSettings, load: LoadIdentity, ledger_id: str) -> list[str]:
    """The load's transactional ids that hold back readers; those that are being ended are waited for."""
    with Wire(settings) as wire:
        coordinator = coordinator_of(wire, load.namespace, ledger_id)
        end = time.monotonic() + 20
        while True:
            seen = coordinator.describe(coordinator.list_open(prefix(load, ledger_id))).values()
            if all(d.coordinator_state.value == "Ongoing" for d in seen) or time.monotonic() > end:
                return sorted(d.transactional_id for d in seen if d.is_open)
            time.sleep(0.05)


def wait_until(done: Callable[[], bool], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.05)


def wait_ended(coordinator: Coordinator, transactional_id: str) -> None:
    """Until the coordinator has written all markers."""
    wait_until(
        lambda: not coordinator.describe([transactional_id])[transactional_id].is_open,
        f"the end of {transactional_id}",
    )


def open_one(wire: Wire, transactional_id: str, tp: TopicPartition) -> PreparedTransaction:
    """An open transaction without a record: its markers are written all the same."""
    state = coordinator_of(wire).init_producer_id(transactional_id, 600_000)
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=state.producer_id,
        v3_and_below_producer_epoch=state.producer_epoch,
        v3_and_below_topics=[topic],
        max_version=3,
    )

    def added() -> bool:
        answer = wire.send_to_coordinator(transactional_id, request)
        rows = [p for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition]
        return [p.partition_error_code for p in rows] == [0]

    wait_until(added, f"the first partition of {transactional_id}")
    return PreparedTransaction(transactional_id, state)
