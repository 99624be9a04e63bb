"""A buggy or delayed client: one produce request, sent without asking anybody whether its transaction is still open."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from airflow_kafka_eos.kafka.arrow.batches import OpenBatch, seal
from airflow_kafka_eos.kafka.arrow.encode import Columns, encode, measure
from airflow_kafka_eos.kafka.produce_request import BatchesRequest
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
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
    request = BatchesRequest(
        [seal(batch, place, 0, transaction.state, sequence, (0, None))],
        transactional_id=transaction.transactional_id,
        version=_VERSION,
        timeout_ms=10_000,
        topic_ids={},
    )
    with Wire(settings, timeout_s=20) as wire:
        answer = wire.send_to_leader(place, request)
    (code,) = [p.error_code for t in answer.responses for p in t.partition_responses]
    return int(code)
