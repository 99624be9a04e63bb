"""Open transactions of others whose ids look like ours: no recovery may touch them (rule: only-our-ids)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest, InitProducerIdRequest

from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.naming import prefix
from airflow_kafka_eos.transaction import CoordinatorState
from tests.crashes.victim import Place

#: another deployment with the same namespace and load
OTHER_LEDGER = "0123456789"


class Foreigners:
    """Two of them beside one load: one that our own listing shows, one of another ledger."""

    def __init__(self, wire: Wire, world: Place, topic: str) -> None:
        self._world = world
        ours = prefix(world.load, world.session.ledger.ledger_id)
        names = [ours + "1-0-1x", prefix(world.load, OTHER_LEDGER) + "1-0-1"]
        self._open = {name: _open(wire, name, topic) for name in names}

    def check_untouched(self) -> None:
        found = self._world.session.coordinator.describe(self._open)
        states = {n: (d.state.producer_id, d.state.producer_epoch) for n, d in found.items()}
        assert states == self._open
        assert {d.coordinator_state for d in found.values()} == {CoordinatorState.ONGOING}


def _open(wire: Wire, name: str, topic: str) -> tuple[int, int]:
    """As any client would do it, past our own guards: producer id and epoch of a transaction left open."""
    init = InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=600_000,
        producer_id=-1,
        producer_epoch=-1,
        max_version=4,
    )
    answer = _settled(wire, name, init, lambda found: found.error_code)
    identity = (answer.producer_id, answer.producer_epoch)
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        max_version=3,
    )
    _settled(wire, name, add, _worst_of_partitions)
    return identity


def _worst_of_partitions(answer: Any) -> int:
    topics = answer.results_by_topic_v3_and_below
    worst: int = max(p.partition_error_code for t in topics for p in t.results_by_partition)
    return worst


def _settled(wire: Wire, name: str, request: object, error_of: Callable[[Any], int]) -> Any:
    end = time.monotonic() + 30
    while True:
        answer = wire.send_to_coordinator(name, request)
        code = error_of(answer)
        if code == 0:
            return answer
        assert time.monotonic() < end, f"{name}: error {code}"
        time.sleep(0.02)
