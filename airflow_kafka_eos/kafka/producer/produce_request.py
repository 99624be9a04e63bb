"""A Produce request that copies no record: batches go to the socket from where they lie.

kafka-python's own encoder would copy batches of a megabyte three times. Versions 9 to 13 (flexible) are written here;
the header and the response are kafka-python's.

A :class:`~airflow_kafka_eos.kafka.client.wire.Wire` on which several requests may be under way at once.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.producer.produce import ProduceRequest

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.client.connections import Pieces, translate
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records import varint
from airflow_kafka_eos.kafka.records.batch import SealedBatch

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
        pieces.append(varint.unsigned(len(by_topic) + 1))
        for topic, batches in by_topic.items():
            named = self.API_VERSION < TOPIC_ID_VERSION
            pieces += (_string(topic) if named else self._topic_ids[topic].bytes, varint.unsigned(len(batches) + 1))
            for batch in batches:
                index = struct.pack(">i", batch.partition.partition)
                pieces += (index, varint.unsigned(batch.bytes + 1), *batch.data, _NO_TAGS)
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
    return varint.unsigned(len(encoded) + 1) + encoded


#: More than we ever have under way: kafka-python refuses further requests instead of queueing them.
_NEVER_REFUSED = 1000

#: Gets the response, or the error why there is none.
Answered = Callable[[Any, BaseException | None], None]


class ProduceWire(Wire):
    """For one thread at a time; only :meth:`wake` may be called from another.

    :param request_timeout_s: after so many seconds without an answer a connection is closed.
    """

    def __init__(self, settings: KafkaSettings, *, timeout_s: float, request_timeout_s: float) -> None:
        super().__init__(settings, timeout_s=timeout_s)
        self._manager.config["max_in_flight_requests_per_connection"] = _NEVER_REFUSED
        if "reconnect.backoff.max.ms" not in settings.for_librdkafka():
            # kafka-python's 30 s would outlast a leader that is back at once; the Java client has 1 s
            self._manager.config["reconnect_backoff_max_ms"] = 1000
        self._produce_timeout_ms = int(request_timeout_s * 1000)

    def start(self, node_id: int, request: Any, answered: Answered) -> None:
        """Send a request to a broker without waiting. ``answered`` is called once, from here or from :meth:`turn`,
        and must not send anything that waits."""
        try:
            future = self._manager.send(request, node_id, request_timeout_ms=self._produce_timeout_ms)
        except Exception as e:
            # a broker that the newest metadata do not have any more, or what one said that refused the login
            answered(None, self._explain(e))
            return
        future.add_callback(lambda response: answered(response, None))
        future.add_errback(lambda error: answered(None, self._explain(error)))

    def turn(self, timeout_s: float) -> None:
        """Let what is under way make progress; returns when something did, was woken, or after ``timeout_s``."""
        self._net.poll(timeout_ms=timeout_s * 1000)

    def wake(self) -> None:
        """End a :meth:`turn` that waits. From any thread."""
        self._net.wakeup()

    def transaction_version(self) -> int:
        """The cluster's finalized ``transaction.version`` (KIP-890): 2 where Produce adds partitions by itself."""
        answer = self.send_to_any(
            ApiVersionsRequest(
                client_software_name="airflow-kafka-eos", client_software_version="0", min_version=3
            )
        )
        levels = {f.name: int(f.max_version_level) for f in answer.finalized_features or []}
        return levels.get("transaction.version", 0)

    def _explain(self, error: BaseException) -> KafkaEosError | BaseException:
        return translate(error, self._manager.last_failure, self.settings)
