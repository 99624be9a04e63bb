"""A batch as Spark hands it over becomes the columns that are encoded, and what cannot be written is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka.producer.arrow import encoding
from airflow_kafka_eos.kafka.producer.arrow.binary import binary, from_parts, lengths_of, offsets_of
from airflow_kafka_eos.kafka.producer.arrow.encoding import Columns
from airflow_kafka_eos.kafka.producer.arrow.partitioner import column
from airflow_kafka_eos.kafka.producer.interface import WriteTarget, bad_timestamp, no_header_name

#: Bytes of a batch that are looked at in one go: bounds the memory beside Arrow's own, and the 32-bit offsets.
_PIECE_BYTES = 32 * 1024 * 1024


class NamelessHeader(Exception):
    """A header is null, or its name is: Kafka has no such headers."""


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch, or parts of it that are small enough to be copied once or twice."""
    if batch.num_rows > 1 and batch.nbytes > _PIECE_BYTES:
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half))
        yield from pieces(batch.slice(half))
    elif batch.num_rows:
        yield batch


def read(batch: pa.RecordBatch, target: WriteTarget, now_ms: int) -> Columns:
    """The columns ``key``, ``value``, ``headers`` and ``timestamp`` of a batch.

    :raises RecordError: a header without a name, a timestamp before 1970.
    """
    key, value = (column(batch, name) for name in ("key", "value"))
    headers = column(batch, "headers")
    try:
        encoded, header_bytes = (None, None) if headers is None else sections(headers)
    except NamelessHeader:
        raise no_header_name(target) from None
    timestamps = column(batch, "timestamp")
    if timestamps is not None:
        # numbers below a millisecond are cut off
        whole = pc.cast(timestamps, pa.timestamp("ms"), safe=False).view(pa.int64())
        # looked at as they came: -1 µs would be cut to 0
        early = pc.fill_null(pc.less(timestamps.view(pa.int64()), 0), False).to_numpy(zero_copy_only=False)
        timestamps = pc.fill_null(whole, now_ms).to_numpy(zero_copy_only=False)
        if early.any():
            row = int(np.flatnonzero(early)[0])
            topics = column(batch, "topic")
            topic = None if topics is None else topics[row].as_py()
            name = topic or target.default_topic or ""
            raise bad_timestamp(name, min(int(timestamps[row]), -1), target)
        timestamps = timestamps.astype(np.int64, copy=False)
    return Columns(
        batch.num_rows,
        None if key is None else binary(key),
        None if value is None else binary(value),
        encoded,
        header_bytes,
        timestamps,
    )


def sections(column: pa.Array) -> tuple[pa.BinaryArray, npt.NDArray[np.int64]] | tuple[None, None]:
    """Encode a column of array<struct<key:string,value:binary>> as the header sections of records.

    :returns: each row's header section, and the bytes of its names and values; (None, None) when no row has any.
    :raises NamelessHeader: a header is null, or has no name.
    """
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int32)
    if not counts.any():
        return None, None
    flat = column.flatten()
    if flat.null_count or flat.field(0).null_count:
        raise NamelessHeader
    # flatten() of a struct array takes its own offset and nulls into account, field() does not
    names, values = (binary(part) for part in flat.flatten())
    name_lengths, value_lengths = lengths_of(names), lengths_of(values)
    each = pc.binary_join_element_wise(
        from_parts(*encoding.rows([encoding.field(name_lengths)], len(flat))),
        names,
        from_parts(*encoding.rows([encoding.field(value_lengths)], len(flat))),
        values,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    ends = np.concatenate([[0], np.cumsum(counts)])
    content = np.concatenate([[0], np.cumsum(name_lengths + np.maximum(value_lengths, 0), dtype=np.int64)])
    # a row's headers lie side by side in `each`: only the offsets change
    starts = offsets_of(each)[ends].astype(np.int32)
    rows = pa.BinaryArray.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(starts), each.buffers()[2]])
    count_bytes = from_parts(*encoding.rows([encoding.field(counts)], len(column)))
    return pc.binary_join_element_wise(count_bytes, rows, b""), content[ends[1:]] - content[ends[:-1]]
