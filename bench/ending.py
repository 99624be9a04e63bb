"""Ending prepared transactions: one by one, and as the package ends them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TopicPartition
from bench.broker import Broker
from bench.cases import TIMEOUT_MS
from bench.identity import LEDGER, NAMESPACE
from bench.logcheck import check
from bench.report import Extra

PARTITIONS = 4
_RETRIES = 200
#: The newest versions of transaction version 1: they name topics by name, and partitions are added by a request.
_ADD_VERSION, _PRODUCE_VERSION = 3, 9


def ending(broker: Broker, transactions: int, rounds: int, say: Callable[[str], None]) -> Extra:
    """Interleaved rounds; each prepares its transactions anew, outside the clock."""
    ways: dict[str, Callable[[Coordinator, list[PreparedTransaction]], object]] = {
        "one by one": lambda c, every: [c.end(t, Verdict.COMMIT) for t in every],
        "as the package ends them": lambda c, every: c.end_many(every, Verdict.COMMIT),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(1, rounds + 1):
        for name, way in ways.items():
            topic = broker.create_topic(PARTITIONS)
            key = f"ending-{round_}-{name}"
            prepared = list(prepare_many(broker, topic, key, transactions))
            with Wire(broker.settings) as wire:
                coordinator = Coordinator(wire, namespace=NAMESPACE, ledger_id=LEDGER)
                begun = time.perf_counter()
                way(coordinator, prepared)
                seconds = time.perf_counter() - begun
            broker.wait_ended(topic, PARTITIONS)
            check(broker.scan(topic, PARTITIONS), [len(range(p, transactions, PARTITIONS)) for p in range(PARTITIONS)])
            broker.delete_topic(topic)
            found[name].append(seconds)
            say(f"ending {transactions} transactions, {name}: {seconds:.2f} s")
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    rows = [(f"{name}, s", f"{medians[name]:.2f} ({min(all_):.2f}–{max(all_):.2f})") for name, all_ in found.items()]
    slow, fast = medians.values()
    return f"Ending {transactions:,} prepared transactions", [*rows, ("times as fast", f"{slow / fast:.1f}")]


def prepare_many(broker: Broker, topic: str, key: str, count: int) -> Iterable[PreparedTransaction]:
    """Prepared transactions of one record each, in the topic's partitions in turn."""
    with Wire(broker.settings) as wire:
        coordinator = Coordinator(wire, namespace=NAMESPACE, ledger_id=LEDGER)
        for number in range(count):
            named = TransactionalId(LoadIdentity(NAMESPACE, "ending", key), LEDGER, 1, number, number)
            state = coordinator.init_producer_id(str(named), TIMEOUT_MS)
            _add_partition(wire, str(named), state, topic, number % PARTITIONS)
            _produce(wire, str(named), state, topic, number % PARTITIONS)
            yield PreparedTransaction(str(named), state)


def _add_partition(wire: Wire, transactional_id: str, state: PreparedTxnState, topic: str, partition: int) -> None:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=state.producer_id,
        v3_and_below_producer_epoch=state.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        max_version=_ADD_VERSION,
    )

    def send() -> int:
        answer = wire.send_to_coordinator(transactional_id, request)
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    _until_taken(send, f"adding a partition to {transactional_id}")


def _produce(wire: Wire, transactional_id: str, state: PreparedTxnState, topic: str, partition: int) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, True, state.producer_id, state.producer_epoch, 0, 1000)
    builder.append(0, int(time.time() * 1000), b"key", b"value", [])
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            data(
                name=topic,
                partition_data=[data.PartitionProduceData(index=partition, records=bytes(builder.build()))],
            )
        ],
        max_version=_PRODUCE_VERSION,
    )

    def send() -> int:
        answer = wire.send_to_leader(TopicPartition(topic, partition), request)
        return int(answer.responses[0].partition_responses[0].error_code)

    _until_taken(send, f"producing in {transactional_id}")


def _until_taken(send: Callable[[], int], what: str) -> None:
    for _ in range(_RETRIES):
        code = send()
        if code == 0:
            return
        time.sleep(0.005)  # the coordinator still writes what came before
    raise RuntimeError(f"{what}: error {code}")
