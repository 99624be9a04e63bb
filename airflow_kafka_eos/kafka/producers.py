"""What a broker remembers of a partition's producers, all of it: for people who look (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka.protocol.admin.transactions import DescribeProducersRequest, ListTransactionsRequest

from airflow_kafka_eos.errors import TopicError
from airflow_kafka_eos.kafka import retry
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.transaction import TopicPartition

_NOT_LEADER_OR_FOLLOWER = 6


class RememberedProducer(NamedTuple):
    """One producer of a partition. ``txn_start_offset`` is -1 where it has no transaction open there."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    txn_start_offset: int


def remembered_producers(wire: Wire, tp: TopicPartition, broker_id: int | None) -> list[RememberedProducer]:
    """By producer id.

    :param broker_id: ask this replica; None: the leader.
    :raises TopicError: there is no such partition, or the broker has no replica of it.
    :raises AccessError: READ on the topic is missing.
    """
    topic = DescribeProducersRequest.TopicRequest

    def attempt() -> list[RememberedProducer]:
        node_id = broker_id if broker_id is not None else wire.leaders([tp])[tp]
        asked = DescribeProducersRequest(topics=[topic(name=tp.topic, partition_indexes=[tp.partition])])
        ((row,),) = (t.partitions for t in wire.send_to_broker(node_id, asked).topics)
        if broker_id is not None and row.error_code == _NOT_LEADER_OR_FOLLOWER:
            raise TopicError(
                f"broker {broker_id} has no replica of {tp}", remedy="Leave --broker-id out, or name one that has"
            )
        if row.error_code:
            wire.forget_leaders([tp])
        retry.check(row.error_code, operation="READ", resource=f"Topic {tp.topic}", lag=True)
        return [
            RememberedProducer(
                p.producer_id,
                p.producer_epoch,
                p.coordinator_epoch,
                p.last_sequence,
                p.last_timestamp,
                p.current_txn_start_offset,
            )
            for p in sorted(row.active_producers, key=lambda p: p.producer_id)
        ]

    if broker_id is not None and broker_id not in wire.broker_ids():
        raise TopicError(f"there is no broker {broker_id}", remedy=f"Name one of {sorted(wire.broker_ids())}")
    return retry.until_settled(attempt, what=f"describing the producers of {tp}", timeout_s=wire.timeout_s)


def transactional_ids_of(wire: Wire, producer_ids: Iterable[int]) -> dict[int, str]:
    """Their transactional ids, as far as coordinators know them and we may see them."""
    wanted = sorted(set(producer_ids))

    def attempt() -> dict[int, str]:
        found = {}
        for node_id in wire.broker_ids():
            request = ListTransactionsRequest(state_filters=[], producer_id_filters=wanted, duration_filter=-1)
            answer = wire.send_to_broker(node_id, request)
            retry.check(answer.error_code, operation="DESCRIBE", resource="TransactionalId *")
            found.update({row.producer_id: row.transactional_id for row in answer.transaction_states})
        return found

    if not wanted:
        return {}
    return retry.until_settled(
        attempt, what="looking up transactional ids by producer id", timeout_s=wire.timeout_s
    )
