"""A buggy or delayed client: one produce request, sent without asking anybody whether its transaction is still open."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.arrow.encoding import Columns, encode, measure
from airflow_kafka_eos.kafka.producer.produce_request import produce_request
from airflow_kafka_eos.kafka.records.batch import OpenBatch, seal
from airflow_kafka_eos.transaction import PreparedTransaction, TopicPartition

#: of Produce: the newest that does not add partitions by itself (KIP-890)
_VERSION = 9


def produce_late(
    settings: KafkaSettings, transaction: PreparedTransaction, place: TopicPartition, value: str, sequence: int
) -> int:
    """Send one record of that producer id and epoch; the broker's error code."""
    columns = Columns(1, None, pa.array([value.encode()], pa.binary()))
    now = int(time.time() * 1000)
    batch = OpenBatch(now, now, encode(columns, measure(columns), np.zeros(1, np.int32)).records(0, 1), 1)
    request = produce_request(
        [seal(batch, place, 0, transaction.state, sequence, (0, None))],
        transactional_id=transaction.transactional_id,
        versions=(_VERSION, _VERSION),
        timeout_ms=10_000,
        topic_ids={},
    )
    with Wire(settings, timeout_s=20) as wire:
        answer = wire.send_to_leader(place, request)
    (code,) = [p.error_code for t in answer.responses for p in t.partition_responses]
    return int(code)


def add_partition(settings: KafkaSettings, transaction: PreparedTransaction, place: TopicPartition) -> None:
    """AddPartitionsToTxn: from here on the coordinator has a transaction open, and writes its end there."""
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=place.topic, partitions=[place.partition])
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transaction.transactional_id,
        v3_and_below_producer_id=transaction.state.producer_id,
        v3_and_below_producer_epoch=transaction.state.producer_epoch,
        v3_and_below_topics=[topic],
        max_version=3,
    )
    with Wire(settings, timeout_s=20) as wire:
        answer = wire.send_to_coordinator(transaction.transactional_id, request)
    (code,) = [
        p.partition_error_code
        for t in answer.results_by_topic_v3_and_below
        for p in t.results_by_partition
    ]
    assert code == 0
