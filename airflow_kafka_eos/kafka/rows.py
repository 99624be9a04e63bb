"""Rows of an Arrow batch as a row-wise Kafka client wants them, and the check that each has a place to go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_eos.kafka.digest import Header, record_bytes
from airflow_kafka_eos.kafka.refusals import (
    bad_timestamp,
    beyond_librdkafka,
    no_header_name,
    too_large,
    too_old,
    unknown_partition,
    unknown_topic,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_eos.kafka.writer import WriteTarget

#: The columns that a batch may have: those of Spark's own Kafka sink, and the timestamp of its source.
COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")
#: Rows that are turned into Python objects at a time: bounds the memory beside Arrow's own.
_SLICE = 1024


class Row(NamedTuple):
    """One record to be written. ``partition`` None: the client's partitioner chooses; timestamp 0: now."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int = 0


def rows(batch: pa.RecordBatch, target: WriteTarget) -> Iterator[Row]:
    """The rows of a batch, each with a topic of the target's.

    :raises RecordError: a row without topic, with a topic or partition that is not there, or too large even alone.
    """
    for start in range(0, batch.num_rows, _SLICE):
        part = batch.slice(start, _SLICE)
        for topic, partition, key, value, headers, timestamp in zip(
            _values(part, "topic"),
            _values(part, "partition"),
            _binary(part, "key"),
            _binary(part, "value"),
            _values(part, "headers"),
            _timestamps(part, target),
            strict=True,
        ):
            to = target.default_topic if topic is None else topic
            if to is None:
                raise unknown_topic(None, target)
            yield _placed(Row(to, partition, key, value, _headers(headers, target), timestamp), target)


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    index = batch.schema.get_field_index(name)
    return [None] * batch.num_rows if index < 0 else batch.column(index).to_pylist()


def _binary(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    import pyarrow as pa

    index = batch.schema.get_field_index(name)
    if index < 0:
        return [None] * batch.num_rows
    column = batch.column(index)
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())  # UTF-8 as it stands, no copy
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()  # type: ignore[no-any-return]


def _timestamps(batch: pa.RecordBatch, target: WriteTarget) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    index = batch.schema.get_field_index("timestamp")
    if index < 0:
        return [0] * batch.num_rows
    whole = pc.cast(batch.column(index), pa.timestamp("ms"), safe=False).view(pa.int64())
    if pc.any(pc.equal(whole, 0)).as_py():
        raise beyond_librdkafka("timestamp 0 (1970-01-01), which would become the moment of writing", target)
    return pc.fill_null(whole, 0).to_pylist()  # type: ignore[no-any-return]


def _headers(value: list[dict[str, Any]] | None, target: WriteTarget) -> list[Header]:
    if not value:
        return []
    for header in value:
        if header is None or header["key"] is None:
            raise no_header_name(target)
        if "\0" in header["key"]:
            raise beyond_librdkafka("a header with a zero byte in its name, which would be cut there", target)
    return [(header["key"], header["value"]) for header in value]


def _placed(row: Row, target: WriteTarget) -> Row:
    limits = target.topics.get(row.topic)
    if limits is None:
        raise unknown_topic(row.topic, target)
    if row.partition is not None and not 0 <= row.partition < limits.partitions:
        raise unknown_partition(row.topic, row.partition, target)
    if row.timestamp_ms < 0:
        raise bad_timestamp(row.topic, row.timestamp_ms, target)
    if 0 < row.timestamp_ms < limits.oldest_timestamp_ms:
        raise too_old(row.topic, row.timestamp_ms, target)
    size = record_bytes(row.key, row.value, row.headers)
    if size > limits.max_message_bytes:
        raise too_large(row.topic, row.partition, size, target, row.key)
    return row
