"""Arrow batches for tests, and record batches read back by kafka-python, which shares nothing with our encoder."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import lz4.frame
import numpy as np
import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatch

from airflow_kafka_eos.kafka.records.batch import SealedBatch

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "headers": HEADERS,
    "partition": pa.int32(),
    "topic": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class Row(NamedTuple):
    """One record as a test thinks of it; headers as (name, value) pairs, timestamp in milliseconds."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    partition: int | None = None
    topic: str | None = None


class Read(NamedTuple):
    """One record as it was read back."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def batch(**columns: Any) -> pa.RecordBatch:
    """Columns by name; key and value are binary, timestamps are milliseconds."""
    arrays = {}
    for name, values in columns.items():
        if name == "timestamp":
            values = [None if v is None else v * 1000 for v in values]
        arrays[name] = pa.array(values, TYPES.get(name, pa.binary()))
    return pa.RecordBatch.from_pydict(arrays)


def batch_of(rows: Iterable[Row], leave_out: Iterable[str] = ()) -> pa.RecordBatch:
    """Rows as a batch with the columns of :class:`Row`, less those left out."""
    rows = list(rows)
    columns: dict[str, Any] = {name: [getattr(r, name) for r in rows] for name in Row._fields}
    columns["headers"] = [
        [{"key": k, "value": v} for k, v in r.headers] if r.headers else None for r in rows
    ]
    return batch(**{n: v for n, v in columns.items() if n not in set(leave_out)})


def disguised(column: pa.Array, how: str) -> pa.Array:
    """The same values in another shape of memory."""
    if how == "slice":
        padded = pa.concat_arrays([column[:1], column, column[-1:]]) if len(column) else column
        return padded.slice(1, len(column)) if len(column) else column
    if how == "large":
        return column.cast(pa.large_binary())
    if how == "large slice":
        return disguised(column.cast(pa.large_binary()), "slice")
    if how == "view":
        return column.cast(pa.binary_view())
    if how == "garbage behind nulls":
        return garbage_behind_nulls(column)
    assert how == "plain", how
    return column


DISGUISES = ("plain", "slice", "large", "large slice", "view", "garbage behind nulls")


def garbage_behind_nulls(column: pa.Array) -> pa.Array:
    """A binary column whose nulls have bytes: Arrow allows it, and ``fill_null`` or a filter can make it."""
    filled = pa.array([b"GARBAGE" if v is None else v for v in column.to_pylist()], pa.binary())
    valid = np.packbits(np.array([v is not None for v in column.to_pylist()], bool), bitorder="little")
    _, offsets, data = filled.buffers()
    return pa.BinaryArray.from_buffers(pa.binary(), len(column), [pa.py_buffer(valid.tobytes()), offsets, data])


def raw(sealed: SealedBatch) -> bytes:
    """A batch as it is sent."""
    return b"".join(bytes(p) for p in sealed.data)


def parse(sealed: SealedBatch) -> tuple[DefaultRecordBatch, list[Read]]:
    """A sealed batch and its records; its own arithmetic is checked on the way."""
    data = raw(sealed)
    assert len(data) == sealed.bytes
    found = DefaultRecordBatch(data)
    assert found.validate_crc()
    assert found.size_in_bytes == len(data)
    assert (found.magic, found.is_transactional, found.is_control_batch) == (2, True, False)
    assert found.base_sequence == sealed.sequence
    code = found.compression_type
    if code:
        plain = _inflated(code, data[61:])
        attributes = struct.pack(">h", found.attributes & ~7)
        found = DefaultRecordBatch(data[:21] + attributes + data[23:61] + plain)
    records = list(found)
    assert len(records) == sealed.records == found.last_offset_delta + 1
    assert [r.offset for r in records] == list(range(len(records)))
    assert max(r.timestamp for r in records) <= found.max_timestamp
    return found, [Read(r.key, r.value, tuple(r.headers), r.timestamp) for r in records]


def compression_of(sealed: SealedBatch) -> int:
    """The code in its attributes."""
    code: int = DefaultRecordBatch(raw(sealed)).compression_type
    return code


def _inflated(code: int, data: bytes) -> bytes:
    if code == 1:
        return gzip.decompress(data)
    if code == 2:
        return b"".join(_snappy_blocks(data))
    if code == 3:
        assert lz4.frame.get_frame_info(data)["block_linked"] is False  # Kafka refuses linked blocks
        return bytes(lz4.frame.decompress(data))
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read())


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    # snappy-java's stream: magic, version, compatible version, then blocks behind their lengths
    assert data[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    at = 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        block = data[at + 4 : at + 4 + size]
        yield pa.Codec("snappy").decompress(block, _varint_at(block), asbytes=True)
        at += 4 + size


def _varint_at(block: bytes) -> int:
    number = shift = 0
    for byte in block:
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return number
