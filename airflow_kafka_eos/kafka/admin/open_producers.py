"""Hanging transactions (KIP-664, KIP-890): a partition has one open that no coordinator will ever end.

They come from a produce request that arrives after its transaction's end (transaction version 1), or from a client
that writes before it has added the partition. Readers are held back until somebody writes an abort marker into that
partition, past the coordinator. Here is what to ask and how to judge; whose they are, and which may be ended, is the
protocol's.

What a broker remembers of a partition's producers, all of it: for people who look (KIP-664).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka.protocol.admin.transactions import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from airflow_kafka_eos.errors import TopicError
from airflow_kafka_eos.kafka.client import retry
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)


class OpenProducer(NamedTuple):
    """A producer with a transaction open in a partition, as the partition's leader shows it.

    :param last_timestamp_ms: of its last record, as its application dated it; -1 when the leader does not know.
    :param last_sequence: of its last record: another one by the next look means that it is at work.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    txn_start_offset: int
    last_timestamp_ms: int
    last_sequence: int = -1

    @property
    def state(self) -> PreparedTxnState:
        return PreparedTxnState(self.producer_id, self.producer_epoch)


def open_producers(wire: Wire, tps: Iterable[TopicPartition]) -> list[OpenProducer]:
    """All producers with an open transaction in these partitions, by partition and start offset.

    :raises AccessError: READ on a topic is missing.
    """
    left = sorted(set(tps))
    found: list[OpenProducer] = []

    def attempt() -> None:
        nonlocal left
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for tp, node_id in wire.leaders(left).items():
            by_leader[node_id].append(tp)
        again = ""
        for node_id, mine in by_leader.items():
            try:
                answer = wire.send_to_broker(node_id, _describe(mine))
            except Exception:
                wire.forget_leaders(mine)
                raise
            done = set()
            for t in answer.topics:
                for row in t.partitions:
                    tp = TopicPartition(t.name, row.partition_index)
                    try:
                        retry.check(row.error_code, operation="READ", resource=f"Topic {t.name}", lag=True)
                    except retry.Retry as e:
                        wire.forget_leaders([tp])
                        again = e.reason
                    else:
                        done.add(tp)
                        found.extend(_open_of(tp, row.active_producers))
            left = [tp for tp in left if tp not in done]
        if left:
            raise retry.Retry(again or f"no answer for {left[0]}")

    if left:
        what = f"describing the producers of {', '.join(map(str, left[:5]))}"
        retry.until_settled(attempt, what=what, timeout_s=wire.timeout_s)
    return sorted(found, key=lambda p: (p.partition, p.txn_start_offset))


def why_hanging(producer: OpenProducer, seen: TransactionDescription | None) -> str:
    """Why a coordinator will never end what a partition has open; an empty text when it will, or may.

    Ask the partition again behind the coordinator's answer: in between a marker may have come.

    :param seen: the transactional id of that producer id, as its coordinator shows it; None: nobody knows one, which is
        for the caller to be sure of: a listing lacks what one may not describe.
    """
    if seen is None:
        return "no coordinator knows its producer id"
    if seen.coordinator_state is CoordinatorState.UNKNOWN:
        return ""  # a state that a newer broker has: no guessing
    if not seen.is_open:
        return f"its coordinator shows {seen.coordinator_state.value}"
    if producer.state != seen.state and seen.coordinator_state is CoordinatorState.ONGOING:
        return f"its coordinator has {seen.state} open, not {producer.state}"
    if producer.partition not in seen.partitions:
        return "its coordinator's open transaction does not have this partition"
    return ""


def write_marker(wire: Wire, producer: OpenProducer, verdict: Verdict) -> bool:
    """Have the partition's leader write an end marker for exactly that producer id and epoch.

    This goes past the coordinator (WriteTxnMarkers, as KIP-664's abortTransaction): never for a transaction that a
    coordinator still has. The leader refuses an epoch that is older than the producer's own.

    :returns: False when the leader refused the epoch: somebody else has ended it, or begun anew.
    :raises AccessError: ALTER (or CLUSTER_ACTION) on the Cluster is missing.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=verdict is Verdict.COMMIT,
                topics=[
                    marker.WritableTxnMarkerTopic(
                        name=producer.partition.topic, partition_indexes=[producer.partition.partition]
                    )
                ],
                # a leader that has seen no marker of this producer yet shows -1, and takes any from 0 on
                coordinator_epoch=max(producer.coordinator_epoch, 0),
            )
        ]
    )

    def attempt() -> bool:
        answer = wire.send_to_leader(producer.partition, request)
        for code in _codes(answer):
            if code == _INVALID_PRODUCER_EPOCH:
                return False
            if retry.is_retriable(code, metadata_may_lag=True):
                wire.forget_leaders([producer.partition])
            resource = "Cluster" if code == _CLUSTER_AUTHORIZATION_FAILED else f"Topic {producer.partition.topic}"
            retry.check(code, operation="ALTER", resource=resource, lag=True)
        return True

    what = f"writing a marker ({verdict.value}) of producer {producer.state} into {producer.partition}"
    return retry.until_settled(attempt, what=what, timeout_s=wire.timeout_s)


_CLUSTER_AUTHORIZATION_FAILED = 31
_INVALID_PRODUCER_EPOCH = 47


def _codes(answer: Any) -> list[int]:
    return [p.error_code for m in answer.markers for t in m.topics for p in t.partitions]


def _describe(tps: Iterable[TopicPartition]) -> Any:
    topics: dict[str, list[int]] = defaultdict(list)
    for tp in tps:
        topics[tp.topic].append(tp.partition)
    topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[topic(name=n, partition_indexes=p) for n, p in topics.items()])


def _open_of(tp: TopicPartition, rows: Iterable[Any]) -> Iterable[OpenProducer]:
    for p in rows:
        if p.current_txn_start_offset >= 0:
            yield OpenProducer(
                tp,
                p.producer_id,
                p.producer_epoch,
                p.coordinator_epoch,
                p.current_txn_start_offset,
                p.last_timestamp,
                p.last_sequence,
            )


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
