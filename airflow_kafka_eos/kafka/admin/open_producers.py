"""Hanging transactions (KIP-664, KIP-890): a partition has one open that no coordinator will ever end.

They come from a produce request that arrives after its transaction's end (transaction version 1), or from a client
that writes before it has added the partition. Readers are held back until somebody writes an abort marker into that
partition, past the coordinator. Here is what to ask and how to judge; whose they are, and which may be ended, is the
protocol's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kafka import errors
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from airflow_kafka_eos.errors import AccessError, BrokerTooOldError, TopicError
from airflow_kafka_eos.kafka.admin.partitions import (
    Partitions,
    ProducerState,
    describe_producers,
    producer_states,
)
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
    found = [
        OpenProducer(
            tp,
            p.producer_id,
            p.producer_epoch,
            p.coordinator_epoch,
            p.txn_start_offset,
            p.last_timestamp_ms,
            p.last_sequence,
        )
        for tp, producers in Partitions(wire).producers(tps).items()
        for p in producers
        if p.txn_start_offset >= 0
    ]
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


class NotOfferedError(AccessError):
    """The brokers that are seen from here take no end markers from clients, whatever rights these have."""


def who_may(refused: AccessError) -> str:
    """Who can do what :func:`write_marker` was refused, to end a remedy with."""
    if isinstance(refused, NotOfferedError):
        return "with a connection to these brokers that offers WriteTxnMarkers: ask whoever runs the cluster"
    return "with a login that has ALTER on the Cluster (or CLUSTER_ACTION), which this one may be granted"


def write_marker(wire: Wire, producer: OpenProducer, verdict: Verdict) -> bool:
    """Have the partition's leader write an end marker for exactly that producer id and epoch.

    This goes past the coordinator (WriteTxnMarkers, as KIP-664's abortTransaction): never for a transaction that a
    coordinator still has. The leader refuses an epoch that is older than the producer's own.

    :returns: False when the leader refused the epoch: somebody else has ended it, or begun anew.
    :raises AccessError: ALTER (or CLUSTER_ACTION) on the Cluster is missing, or no broker offers it to clients.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                transaction_result=verdict.is_commit,
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
        try:
            answer = wire.send_to_leader(producer.partition, request)
        except BrokerTooOldError as e:
            raise NotOfferedError(f"the brokers do not offer WriteTxnMarkers: {e.message}") from e
        for code in (p.error_code for m in answer.markers for t in m.topics for p in t.partitions):
            if code == errors.InvalidProducerEpochError.errno:
                return False
            if retry.is_retriable(code, metadata_may_lag=True):
                wire.forget_leaders([producer.partition])
            on_cluster = code == errors.ClusterAuthorizationFailedError.errno
            resource = "Cluster" if on_cluster else f"Topic {producer.partition.topic}"
            retry.check(code, operation="ALTER", resource=resource, lag=True)
        return True

    what = f"writing a marker ({verdict.value}) of producer {producer.state} into {producer.partition}"
    return wire.until_settled(attempt, what=what)


def producers_of(wire: Wire, tp: TopicPartition, broker_id: int) -> list[ProducerState]:
    """The producers that one replica of a partition remembers, for people who look (KIP-664).

    :raises TopicError: there is no such broker, or it has no replica of the partition.
    :raises AccessError: READ on the topic is missing.
    """

    def attempt() -> list[ProducerState]:
        answer = wire.send_to_broker(broker_id, describe_producers({tp.topic: [tp.partition]}))
        ((row,),) = (t.partitions for t in answer.topics)
        if row.error_code == errors.NotLeaderForPartitionError.errno:
            raise TopicError(
                f"broker {broker_id} has no replica of {tp}", remedy="Leave --broker-id out, or name one that has"
            )
        retry.check(row.error_code, operation="READ", resource=f"Topic {tp.topic}", lag=True)
        return producer_states(row)

    if broker_id not in wire.broker_ids():
        raise TopicError(f"there is no broker {broker_id}", remedy=f"Name one of {sorted(wire.broker_ids())}")
    return wire.until_settled(attempt, what=f"describing the producers of {tp}")
