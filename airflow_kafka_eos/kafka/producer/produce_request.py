"""A Produce request that copies no record: batches go to the socket from where they lie.

kafka-python's own encoder would copy batches of a megabyte three times. Versions 9 to 13 (flexible) are written here;
the header and the response are kafka-python's.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from kafka.protocol.producer.produce import ProduceRequest

from airflow_kafka_eos.kafka.client.connections import RequestInPieces
from airflow_kafka_eos.kafka.records import varint
from airflow_kafka_eos.kafka.records.batch import SealedBatch

#: The first version that names topics by id (KIP-516), and the first that adds partitions by itself (KIP-890).
TOPIC_ID_VERSION = 13
IMPLICIT_VERSION = 12
LOWEST_VERSION = 9

_NO_TAGS = b"\x00"
_ALL = -1


def produce_request(
    batches: Sequence[SealedBatch],
    *,
    transactional_id: str,
    versions: tuple[int, int],
    timeout_ms: int,
    topic_ids: Mapping[str, uuid.UUID],
) -> RequestInPieces:
    """A request with at most one batch per partition.

    :param versions: the lowest and the highest that may be sent; the broker that it is sent to makes the choice.
    :param topic_ids: needed from version 13 on.
    """
    by_topic: dict[str, list[SealedBatch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.partition.topic, []).append(batch)

    def body(version: int) -> list[Any]:
        pieces: list[Any] = [_string(transactional_id), struct.pack(">hi", _ALL, timeout_ms)]
        pieces.append(varint.unsigned(len(by_topic) + 1))
        for topic, mine in by_topic.items():
            pieces.append(_string(topic) if version < TOPIC_ID_VERSION else topic_ids[topic].bytes)
            pieces.append(varint.unsigned(len(mine) + 1))
            for batch in mine:
                index = struct.pack(">i", batch.partition.partition)
                pieces += (index, varint.unsigned(batch.bytes + 1), *batch.data, _NO_TAGS)
            pieces.append(_NO_TAGS)
        return [*pieces, _NO_TAGS]

    lowest, highest = versions
    return RequestInPieces(ProduceRequest(acks=_ALL, min_version=lowest, max_version=highest), body)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return varint.unsigned(len(encoded) + 1) + encoded
