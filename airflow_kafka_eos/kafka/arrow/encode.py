"""The records section of record batches v2, from columns (KIP-98; Kafka's DefaultRecord).

One record is

    length, attributes (0), timestamp delta, offset delta, key length, key, value length, value, header count, headers

with all numbers but the attributes as zig-zag varints, and -1 for the length of a null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka.arrow import varint
from airflow_kafka_eos.kafka.arrow.binary import from_parts, lengths_of, offsets_of, single
from airflow_kafka_eos.kafka.arrow.plain import numbers

_NO_HEADERS = b"\x00"
#: what is put between the parts of a record. Made of a Python value it would import pandas, see :mod:`.plain`
_NOTHING = single(b"")[0]


@dataclass(frozen=True)
class Columns:
    """Records, one per row. All columns have the same length and no offset into longer buffers is assumed away.

    :param key: binary column, null allowed; None when no record has a key.
    :param value: the same for values.
    :param headers: binary column, each row's header section as Kafka writes it (see :mod:`.headers`); None when no
        record has headers.
    :param header_bytes: bytes of names and values in it.
    :param timestamps: milliseconds since the epoch; None: all have the time of their batch.
    """

    rows: int
    key: pa.BinaryArray | None
    value: pa.BinaryArray | None
    headers: pa.BinaryArray | None = None
    header_bytes: npt.NDArray[np.int64] | None = None
    timestamps: npt.NDArray[np.int64] | None = None

    def take(self, indices: npt.NDArray[Any]) -> Columns:
        """Rows in another order."""
        present = {n: c for n in ("key", "value", "headers") if (c := getattr(self, n)) is not None}
        # as one batch: the indices are looked at once
        taken = pa.RecordBatch.from_pydict(present).take(numbers(indices)) if present else None
        found = {n: None if taken is None or n not in present else taken.column(n) for n in ("key", "value", "headers")}
        return Columns(
            len(indices),
            found["key"],
            found["value"],
            found["headers"],
            *(None if n is None else n[indices] for n in (self.header_bytes, self.timestamps)),
        )

    def slice(self, start: int, count: int) -> Columns:
        """Some rows, without a copy."""
        return Columns(
            count,
            *(None if c is None else c.slice(start, count) for c in (self.key, self.value, self.headers)),
            *(None if n is None else n[start : start + count] for n in (self.header_bytes, self.timestamps)),
        )


@dataclass(frozen=True)
class Frames:
    """How long each row's key, value and headers are, and what does not depend on its place in a batch.

    :param key_lengths: bytes, -1 for null; the same for values. ``header_lengths``: bytes of the header section.
    :param content: bytes of key, value and headers, without lengths.
    :param fixed: bytes of the record beside length, timestamp delta and offset delta.
    """

    key_lengths: npt.NDArray[np.int32]
    value_lengths: npt.NDArray[np.int32]
    header_lengths: npt.NDArray[np.int32]
    content: npt.NDArray[Any]
    fixed: npt.NDArray[np.int32]
    key_field: varint.Field
    value_field: varint.Field


def measure(columns: Columns) -> Frames:
    """Measure the rows."""
    keys, key_field, key_sizes = _length_field(columns.key, columns.rows)
    values, value_field, value_sizes = _length_field(columns.value, columns.rows)
    if columns.headers is None:
        headers = np.full(columns.rows, len(_NO_HEADERS), np.int32)
    else:
        headers = lengths_of(columns.headers)
    content = np.maximum(keys, 0) + np.maximum(values, 0)
    fixed = content + headers + (key_sizes + value_sizes) + np.int32(1)
    if columns.header_bytes is not None:
        content = content + columns.header_bytes
    return Frames(keys, values, headers, content, fixed, key_field, value_field)


def _length_field(
    column: pa.BinaryArray | None, rows: int
) -> tuple[npt.NDArray[np.int32], varint.Field, Any]:
    if column is None:
        return np.full(rows, -1, np.int32), 1, 1  # -1 is 1 when zig-zagged
    lengths = lengths_of(column)
    numbers, width = varint.field(lengths)
    return lengths, (numbers, width), width


class Encoded:
    """Encoded records of several batches, one after the other. ``bytes``: of all of them."""

    def __init__(self, joined: pa.BinaryArray, tail: bytes) -> None:
        self._data = memoryview(joined.buffers()[2] or b"")
        self._offsets = offsets_of(joined)
        self._tail = tail
        self.bytes = len(self._data)

    def records(self, start: int, end: int) -> list[memoryview | bytes]:
        """The bytes of rows ``start`` to ``end`` - 1, in pieces, without a copy."""
        first, last = int(self._offsets[start]), int(self._offsets[end])
        if not self._tail:
            return [self._data[first:last]]
        # each row begins with the last byte of the one before it
        return [self._data[first + len(self._tail) : last], self._tail]


def encode(
    columns: Columns,
    frames: Frames,
    offset_deltas: npt.NDArray[np.int32],
    timestamp_deltas: npt.NDArray[np.int64] | None = None,
) -> Encoded:
    """Encode all rows.

    :param frames: what :func:`measure` found of these very columns.
    :param offset_deltas: each record's place in its batch, from 0 on.
    :param timestamp_deltas: milliseconds from its batch's base timestamp; None: 0 for all.
    """
    offset_field = varint.field(offset_deltas)
    body = frames.fixed + offset_field[1]
    timestamp_field: varint.Field = 0
    if timestamp_deltas is None:
        body += 1
    else:
        timestamp_field = varint.field(timestamp_deltas)
        body += timestamp_field[1]
    head: list[varint.Field] = [varint.field(body), 0, timestamp_field, offset_field, frames.key_field]
    # "no headers" is one byte at the end of each record: written as the first one of the next, it costs no column
    tail = _NO_HEADERS if columns.headers is None else b""
    if tail:
        head.insert(0, tail[0])
    parts: list[Any] = []
    if columns.key is None:
        parts.append(from_parts(*varint.rows([*head, frames.value_field], columns.rows)))
    else:
        parts.append(from_parts(*varint.rows(head, columns.rows)))
        parts.append(columns.key)
        parts.append(from_parts(*varint.rows([frames.value_field], columns.rows)))
    if columns.value is not None:
        parts.append(columns.value)
    if columns.headers is not None:
        parts.append(columns.headers)
    # a null key or value has no bytes, its length says it all
    joined = pc.binary_join_element_wise(*parts, _NOTHING, null_handling="replace", null_replacement=b"")
    return Encoded(joined, tail)
