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

from airflow_kafka_eos.kafka import varints
from airflow_kafka_eos.kafka.arrow.batches import SealedBatch
from airflow_kafka_eos.kafka.connections import Pieces

#: The first version that names topics by id (KIP-516), and the first that adds partitions by itself (KIP-890).
TOPIC_ID_VERSION = 13
IMPLICIT_VERSION = 12
LOWEST_VERSION = 9

_NO_TAGS = b"\x00"
#: Bytes of a piece that is rather copied than sent on its own.
_COPIED = 32 * 1024
_ALL = -1


class BatchesRequest:
    """What kafka-python's connection needs of a request, for batches of at most one per partition.

    :param topic_ids: needed from version 13 on.
    """

    API_KEY = 0

    def __init__(
        self,
        batches: Sequence[SealedBatch],
        *,
        transactional_id: str,
        version: int,
        timeout_ms: int,
        topic_ids: Mapping[str, uuid.UUID],
    ) -> None:
        self.batches = batches
        self.API_VERSION = version
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._topic_ids = topic_ids
        self._header_only = ProduceRequest(acks=_ALL, version=version)

    def __repr__(self) -> str:
        return f"BatchesRequest({self._transactional_id}, {len(self.batches)} batches)"

    @property
    def header(self) -> Any:
        return self._header_only.header

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self._header_only.with_header(correlation_id=correlation_id, client_id=client_id)

    def expect_response(self) -> bool:
        return True

    def encode(self, *, framed: bool, header: bool) -> Pieces:
        """The whole frame."""
        assert framed and header
        pieces: list[Any] = [
            self._header_only.encode_header(flexible=True),
            _string(self._transactional_id),
            struct.pack(">hi", _ALL, self._timeout_ms),
        ]
        by_topic: dict[str, list[SealedBatch]] = {}
        for batch in self.batches:
            by_topic.setdefault(batch.partition.topic, []).append(batch)
        pieces.append(varints.unsigned(len(by_topic) + 1))
        for topic, batches in by_topic.items():
            named = self.API_VERSION < TOPIC_ID_VERSION
            pieces += (_string(topic) if named else self._topic_ids[topic].bytes, varints.unsigned(len(batches) + 1))
            for batch in batches:
                index = struct.pack(">i", batch.partition.partition)
                pieces += (index, varints.unsigned(batch.bytes + 1), *batch.data, _NO_TAGS)
            pieces.append(_NO_TAGS)
        pieces.append(_NO_TAGS)
        return _coalesced([struct.pack(">i", sum(map(len, pieces))), *pieces])


def _coalesced(pieces: list[Any]) -> Pieces:
    """The same bytes in fewer pieces: each costs a system call, and on TLS a record of its own."""
    found, small = Pieces(), list[Any]()
    for piece in pieces:
        if len(piece) < _COPIED:
            small.append(piece)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(piece)
    if small:
        found.append(b"".join(small))
    return found


def _string(text: str) -> bytes:
    encoded = text.encode()
    return varints.unsigned(len(encoded) + 1) + encoded
