"""The committed records of a range of offsets, as Arrow record batches, for jobs of engine="arrow".

Each partition is read from the first offset up to the one before the last, as ``read_committed``, without a consumer
group: where reading stands, the ledger's cursor says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

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
_AT_ONCE = 10_000
#: seconds that a partition may be silent before reading is given up
_SILENCE_S = 60.0


def read_range(
    settings: KafkaSettings, since: Mapping[str, Any], until: Mapping[str, Any], *, silence_s: float = _SILENCE_S
) -> Iterator[pa.RecordBatch]:
    """The records between two positions (:mod:`.admin.offset_ranges`).

    :param silence_s: seconds without an answer after which reading is given up.
    :raises TopicError: an offset is not there any more.
    :raises BrokerUnavailableError: no broker answers.
    """
    left = {
        (topic, int(n)): end
        for topic, offsets in until["offsets"].items()
        for n, end in offsets.items()
        if since["offsets"][topic][n] < end
    }
    starts = [TopicPartition(t, n, since["offsets"][t][str(n)]) for t, n in left]
    if not starts:
        return
    consumer = Consumer(
        settings.for_librdkafka()
        | {
            "group.id": "airflow-kafka-eos-cursor",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign(starts)
        heard = time.monotonic()
        while left:
            messages = consumer.consume(_AT_ONCE, timeout=1.0)
            found = [m for m in messages if _is_record(m, left)]
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > silence_s:
                raise BrokerUnavailableError(
                    f"nothing came of {sorted(left)[0]} for {silence_s:g} seconds",
                    remedy="Check that its leader is up; a retry reads the same range again",
                )
            if found:
                yield _batch(found)
            # behind a transaction stands its marker, which no message tells of
            for at in consumer.position([TopicPartition(t, n) for t, n in left]):
                if at.offset != OFFSET_INVALID and at.offset >= left[at.topic, at.partition]:
                    del left[at.topic, at.partition]
    except KafkaException as e:
        raise _error(e.args[0]) from None
    finally:
        consumer.close()


def _is_record(message: Any, left: dict[tuple[str, int], int]) -> bool:
    """Whether it belongs to the range; a partition that is through is not waited for any more."""
    at, error = (message.topic(), message.partition()), message.error()
    if error is not None:
        if error.code() != KafkaError._PARTITION_EOF:
            raise _error(error)
        if at in left and message.offset() >= left[at]:
            del left[at]
        return False
    if at not in left:
        return False
    if message.offset() >= left[at]:
        del left[at]
        return False
    return True


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
