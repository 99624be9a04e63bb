"""Rows of an Arrow batch as a row-wise Kafka client wants them, and the check that each has a place to go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.digest import Header, record_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_eos.kafka.writer import WriteTarget

#: The columns that a batch may have, as Spark's own Kafka sink names them.
COLUMNS = ("key", "value", "headers", "topic", "partition")
#: Rows that are turned into Python objects at a time: bounds the memory beside Arrow's own.
_SLICE = 1024


class Row(NamedTuple):
    """One record to be written. ``partition`` None: the client's partitioner chooses."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]


def rows(batch: pa.RecordBatch, target: WriteTarget) -> Iterator[Row]:
    """The rows of a batch, each with a topic of the target's.

    :raises RecordError: a row without topic, with a topic or partition that is not there, or too large even alone.
    """
    for start in range(0, batch.num_rows, _SLICE):
        part = batch.slice(start, _SLICE)
        for topic, partition, key, value, headers in zip(
            _values(part, "topic"),
            _values(part, "partition"),
            _binary(part, "key"),
            _binary(part, "value"),
            _values(part, "headers"),
            strict=True,
        ):
            row = Row(topic or "", partition, key, value, _headers(headers))
            yield _placed(
                row if topic is not None else row._replace(topic=target.default_topic or ""), target
            )


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


def _headers(value: list[dict[str, Any]] | None) -> list[Header]:
    if not value:
        return []
    for header in value:
        if header is None or header["key"] is None:
            raise RecordError(
                "a row has a header without a key (null), Kafka has no such headers",
                remedy="Filter the headers column, or give each header a key",
            )
    return [(header["key"], header["value"]) for header in value]


def _placed(row: Row, target: WriteTarget) -> Row:
    limits = target.topics.get(row.topic)
    if limits is None:
        raise _refused_topic(row, target)
    if row.partition is not None and not 0 <= row.partition < limits.partitions:
        raise RecordError(
            f"a row asks for partition {row.partition} of topic {row.topic!r}, which has partitions "
            f"0 to {limits.partitions - 1}",
            remedy="Correct the partition column, or leave it null to let the key choose",
            transactional_id=str(target.transactional_id),
        )
    size = record_bytes(row.key, row.value, row.headers)
    if size > limits.max_message_bytes:
        raise too_large(row.topic, row.partition, size, target)
    return row


def _refused_topic(row: Row, target: WriteTarget) -> RecordError:
    allowed = ", ".join(sorted(target.topics))
    if not row.topic:
        return RecordError(
            "a row's topic column is null, and the load has no default topic",
            remedy=f"Fill the topic column, or set the option topic (this load may write to: {allowed})",
            transactional_id=str(target.transactional_id),
        )
    return RecordError(
        f"a row asks for topic {row.topic!r}, which is not among the load's topics: {allowed}",
        remedy="Add it to the load's topics, or correct the topic column",
        transactional_id=str(target.transactional_id),
    )


def too_large(topic: str, partition: int | None, size: int, target: WriteTarget) -> RecordError:
    """A record above its topic's limit. Its content is not shown: it may be private.

    :param size: bytes of key, value and headers.
    """
    where = f"topic {topic!r}" + ("" if partition is None else f" partition {partition}")
    limits = target.topics.get(topic)
    limit = (
        f"takes at most {limits.max_message_bytes} bytes per batch (max.message.bytes)"
        if limits
        else "refuses it"
    )
    return RecordError(
        f"a record of {size} bytes (key, value and headers) is too large for {where}, which {limit}; "
        "each batch has about 100 bytes of its own",
        remedy="Make the record smaller, or raise the topic's max.message.bytes",
        transactional_id=str(target.transactional_id),
    )
