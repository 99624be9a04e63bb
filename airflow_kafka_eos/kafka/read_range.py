"""The committed records of a range of offsets, as Arrow record batches, for jobs of engine="arrow".

Each partition is read from the first offset up to the one before the last, as ``read_committed``, without a consumer
group: where reading stands, the ledger's cursor says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_kafka_eos.errors import BrokerUnavailableError, TopicError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings

#: What the records are made of; a job may return them as they are.
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
    ]
)
#: where a batch ends: by what the records are, never by when they came
_RECORDS, _BYTES = 10_000, 32 * 2**20
#: seconds that a partition may be silent before reading is given up
_SILENCE_S = 60.0
_STATISTICS_MS = 1000


def read_range(
    settings: KafkaSettings, since: Mapping[str, Any], until: Mapping[str, Any], *, silence_s: float = _SILENCE_S
) -> Iterator[pa.RecordBatch]:
    """The records between two positions (:mod:`.admin.offset_ranges`), partition after partition, in their order.

    Read again, they are the same batches: what was lost behind its decision can be prepared again
    (rule: only-equal-records).

    :param silence_s: seconds without progress after which reading is given up.
    :raises TopicError: an offset is not there any more.
    :raises BrokerUnavailableError: no broker answers.
    """
    parts = [
        (topic, int(n), since["offsets"][topic][n], end)
        for topic, offsets in until["offsets"].items()
        for n, end in offsets.items()
        if since["offsets"][topic][n] < end
    ]
    if not parts:
        return
    progress = _Progress()
    consumer = Consumer(
        settings.for_librdkafka()
        | {
            # it has to have one, and asks for nothing of it
            "group.id": "airflow-kafka-eos-cursor",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": progress.note,
        }
    )
    try:
        for topic, n, begin, end in sorted(parts):
            consumer.assign([TopicPartition(topic, n, begin)])
            yield from _batches(_records(consumer, topic, n, end, progress, silence_s))
    except KafkaException as e:
        raise _error(e.args[0]) from None
    finally:
        consumer.close()


class _Progress:
    """How far a consumer has fetched: aborted records are passed over, and no message tells of them."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, int], int] = {}

    def note(self, text: str) -> None:
        for topic, found in json.loads(text).get("topics", {}).items():
            for n, partition in found.get("partitions", {}).items():
                self.offsets[topic, int(n)] = partition.get("next_offset", -1)


def _records(
    consumer: Consumer, topic: str, n: int, end: int, progress: _Progress, silence_s: float
) -> Iterator[Message]:
    heard, at = time.monotonic(), -1
    while True:
        messages = consumer.consume(1000, timeout=1.0)
        for message in messages:
            error = message.error()
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # librdkafka asks for the group's coordinator, whatever is done with the group
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise _error(error)
            if (message.topic(), message.partition()) != (topic, n):
                continue
            # behind a transaction stands its marker, which no message tells of: the log's end does
            at_offset = message.offset()
            if at_offset is not None and at_offset >= end:
                return
            if error is None:
                yield message
        if messages or progress.offsets.get((topic, n), -1) != at:
            heard, at = time.monotonic(), progress.offsets.get((topic, n), -1)
        elif time.monotonic() - heard > silence_s:
            raise BrokerUnavailableError(
                f"nothing came of {topic}-{n} for {silence_s:g} seconds",
                remedy="Check that its leader is up; a retry reads the same range again",
            )


def _size(message: Any) -> int:
    headers = sum(len(key) + len(value or b"") for key, value in message.headers() or ())
    return len(message.value() or b"") + len(message.key() or b"") + headers


def _batches(messages: Iterator[Message]) -> Iterator[pa.RecordBatch]:
    found, size = list[Message](), 0
    for message in messages:
        found.append(message)
        size += _size(message)
        if len(found) == _RECORDS or size >= _BYTES:
            yield _batch(found)
            found, size = [], 0
    if found:
        yield _batch(found)


def _error(error: KafkaError) -> Exception:
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._UNKNOWN_TOPIC):
        return TopicError(
            f"the range cannot be read as a whole: {error.str()}",
            remedy="Records were deleted meanwhile. Look what is missing, then `airflow-kafka-eos cursors set`",
        )
    return BrokerUnavailableError(f"reading failed: {error.str()}", remedy="A retry reads the same range again")


def _batch(messages: list[Any]) -> pa.RecordBatch:
    headers = [[{"key": k, "value": v} for k, v in m.headers() or ()] or None for m in messages]
    columns = [
        [m.key() for m in messages],
        [m.value() for m in messages],
        headers,
        [m.timestamp()[1] for m in messages],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, type=field.type) for c, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
