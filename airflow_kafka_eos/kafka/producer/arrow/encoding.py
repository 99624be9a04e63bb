"""Columns become the bytes of record batches' records sections, all rows at once: by numpy and Arrow (KIP-98; Kafka's
DefaultRecord). No I/O.

One record is

    length, attributes (0), timestamp delta, offset delta, key length, key, value length, value, header count, headers

with all numbers but the attributes as zig-zag varints of 1 to 5 (64-bit: 10) bytes, and -1 for the length of a null.
One varint at a time: :mod:`airflow_kafka_eos.kafka.records.varint`. The same in one pass: :mod:`.kernel_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka.producer.arrow.binary import (
    data_of,
    from_parts,
    lengths_of,
    numbers,
    offsets_of,
    single,
)
from airflow_kafka_eos.kafka.records.split import NO_HEADERS

#: What a record may take beside ``Rows.fixed``: its length, offset delta (5 bytes each) and timestamp delta.
FRAME_MOST = 5 + 5 + 1
FRAME_MOST_TIMED = 5 + 5 + 10
#: What stays open and is less than this share of what was encoded with it is copied: a view would hold on to all of it.
_VIEW_SHARE = 1 / 8
#: what is put between the parts of a record. Made of a Python value it would import pandas, see :mod:`.binary`
_NOTHING = single(b"")[0]

#: Zig-zagged numbers, 32 or 64 bits wide.
Numbers = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
#: One field of each row: numbers and their :func:`sizes`, or one literal byte for all rows.
Field = tuple[Numbers, npt.NDArray[np.uint8]] | int


@dataclass(frozen=True)
class Columns:
    """Records, one per row. All columns have the same length and no offset into longer buffers is assumed away.

    :param key: binary column, null allowed; None when no record has a key.
    :param value: the same for values.
    :param headers: binary column, each row's header section as Kafka writes it (see :mod:`.columns`); None when no
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

    def contents(self, start: int, count: int) -> list[memoryview | bytes]:
        """The keys of some rows, their values and their header sections, each one after the other, as they lie."""
        part = self.slice(start, count)
        keys, values = (b"" if column is None else data_of(column) for column in (part.key, part.value))
        return [keys, values, NO_HEADERS * count if part.headers is None else data_of(part.headers)]


# -- rows in the order of their partitions ---------------------------------------------------------------------------


class Segment(NamedTuple):
    """Rows ``start`` to ``end`` - 1, which follow each other in one record batch.

    :param size: an upper bound of their bytes.
    :param first_delta: offset delta of the first one.
    :param base_timestamp: of the batch, milliseconds.
    :param full: nothing more comes into the batch.
    """

    start: int
    end: int
    size: int
    first_delta: int
    base_timestamp: int
    full: bool


class Run(NamedTuple):
    """A segment, encoded.

    :param pieces: its bytes.
    :param content: bytes of keys, values and headers, without lengths.
    :param lengths: and the others: what :meth:`.PartitionDigest.update_columns` takes.
    """

    pieces: list[Any]
    content: int
    lengths: Any
    keys: Any
    values: Any
    headers: Any


class Rows(Protocol):
    """Rows of columns, in the order of their partitions, measured, and yet to be encoded.

    ``fixed``: bytes of each record beside length, timestamp delta and offset delta. ``timestamps``: milliseconds; None:
    all have the time of their batch.
    """

    fixed: npt.NDArray[Any]
    timestamps: npt.NDArray[np.int64] | None

    def encode(self, segments: Sequence[Segment]) -> Iterator[Run]:
        """A run for each segment. The segments are not empty, and cover all rows in their order."""

    def content_of(self, row: int) -> int:
        """Bytes of key, value and headers of a row, by its place in the order."""


class GatheredRows:
    """Rows that are gathered first, and encoded all at once.

    :param order: which row comes first, second and so on; None: as they stand.
    """

    def __init__(self, columns: Columns, order: npt.NDArray[np.intp] | None) -> None:
        self._columns = columns if order is None else columns.take(order)
        self._frames = measure(self._columns)
        self.fixed: npt.NDArray[Any] = self._frames.fixed
        self.timestamps = self._columns.timestamps

    def encode(self, segments: Sequence[Segment]) -> Iterator[Run]:
        """See :class:`Rows`."""
        columns, frames = self._columns, self._frames
        offset_deltas = np.arange(columns.rows, dtype=np.int32)
        timestamp_deltas = None if self.timestamps is None else self.timestamps.copy()
        for s in segments:
            offset_deltas[s.start : s.end] += s.first_delta - s.start
            if timestamp_deltas is not None:
                timestamp_deltas[s.start : s.end] -= s.base_timestamp
        encoded = encode(columns, frames, offset_deltas, timestamp_deltas)
        lengths = np.stack([frames.key_lengths, frames.value_lengths, frames.header_lengths], axis=1).astype("<i4")
        for s in segments:
            pieces = encoded.records(s.start, s.end)
            if not s.full and s.size < _VIEW_SHARE * encoded.bytes:
                pieces = [b"".join(pieces)]
            content = int(frames.content[s.start : s.end].sum())
            yield Run(pieces, content, lengths[s.start : s.end], *columns.contents(s.start, s.end - s.start))

    def content_of(self, row: int) -> int:
        """See :class:`Rows`."""
        return int(self._frames.content[row])


# -- the records section ---------------------------------------------------------------------------------------------


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
    key_field: Field
    value_field: Field


def measure(columns: Columns) -> Frames:
    """Measure the rows."""
    keys, key_field, key_sizes = _length_field(columns.key, columns.rows)
    values, value_field, value_sizes = _length_field(columns.value, columns.rows)
    if columns.headers is None:
        headers = np.full(columns.rows, len(NO_HEADERS), np.int32)
    else:
        headers = lengths_of(columns.headers)
    content = np.maximum(keys, 0) + np.maximum(values, 0)
    fixed = content + headers + (key_sizes + value_sizes) + np.int32(1)
    if columns.header_bytes is not None:
        content = content + columns.header_bytes
    return Frames(keys, values, headers, content, fixed, key_field, value_field)


def _length_field(
    column: pa.BinaryArray | None, rows: int
) -> tuple[npt.NDArray[np.int32], Field, Any]:
    if column is None:
        return np.full(rows, -1, np.int32), 1, 1  # -1 is 1 when zig-zagged
    lengths = lengths_of(column)
    numbers, width = field(lengths)
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
    offset_field = field(offset_deltas)
    body = frames.fixed + offset_field[1]
    timestamp_field: Field = 0
    if timestamp_deltas is None:
        body += 1
    else:
        timestamp_field = field(timestamp_deltas)
        body += timestamp_field[1]
    head: list[Field] = [field(body), 0, timestamp_field, offset_field, frames.key_field]
    # "no headers" is one byte at the end of each record: written as the first one of the next, it costs no column
    tail = NO_HEADERS if columns.headers is None else b""
    if tail:
        head.insert(0, tail[0])
    parts: list[Any] = []
    if columns.key is None:
        parts.append(from_parts(*rows([*head, frames.value_field], columns.rows)))
    else:
        parts.append(from_parts(*rows(head, columns.rows)))
        parts.append(columns.key)
        parts.append(from_parts(*rows([frames.value_field], columns.rows)))
    if columns.value is not None:
        parts.append(columns.value)
    if columns.headers is not None:
        parts.append(columns.headers)
    # a null key or value has no bytes, its length says it all
    joined = pc.binary_join_element_wise(*parts, _NOTHING, null_handling="replace", null_replacement=b"")
    return Encoded(joined, tail)


# -- whole columns of varints ----------------------------------------------------------------------------------------


def zigzag(values: npt.NDArray[Any]) -> Numbers:
    """Small absolute values become small unsigned numbers: 0, -1, 1, -2 … are 0, 1, 2, 3 …

    :param values: whole numbers of 32 or 64 bits.
    :returns: 32 bits wide where that suffices, for half the memory traffic.
    """
    if len(values) == 0 or (int(values.min()) >= -(2**30) and int(values.max()) < 2**30):
        narrow = values.astype(np.int32, copy=False)
        return ((narrow << 1) ^ (narrow >> 31)).view(np.uint32)
    wide = values.astype(np.int64, copy=False)
    return ((wide << 1) ^ (wide >> 63)).view(np.uint64)


def sizes(numbers: Numbers) -> npt.NDArray[np.uint8]:
    """How many bytes each number takes."""
    found = np.ones(len(numbers), np.uint8)
    largest = int(numbers.max()) if len(numbers) else 0
    bound = 1 << 7
    while bound <= largest:
        found += numbers >= bound
        bound <<= 7
    return found


def field(values: npt.NDArray[Any]) -> tuple[Numbers, npt.NDArray[np.uint8]]:
    """Signed values as a field for :func:`rows`."""
    numbers = zigzag(values)
    return numbers, sizes(numbers)


def rows(fields: Sequence[Field], count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """The fields of each row side by side, row after row.

    :param count: rows, at least 1.
    :returns: the bytes, and where each row starts in them (one more entry than rows).
    """
    most = [1 if isinstance(f, int) else int(f[1].max()) for f in fields]
    ragged = any(not isinstance(f, int) and int(f[1].min()) != m for f, m in zip(fields, most, strict=True))
    width = sum(most)
    matrix = np.empty((count, width), np.uint8)
    there = np.empty((count, width), np.bool_) if ragged else None
    column = 0
    for one, size in zip(fields, most, strict=True):
        for k in range(size):
            if isinstance(one, int):
                matrix[:, column] = one
            elif k == size - 1:
                matrix[:, column] = one[0] >> (7 * k)  # its top bits are all that is left
            else:
                matrix[:, column] = (one[0] >> (7 * k) & 0x7F) | ((one[1] > k + 1) * np.uint8(0x80))
            if there is not None:
                there[:, column] = True if isinstance(one, int) else one[1] > k
            column += 1
    offsets = np.zeros(count + 1, np.int32)
    if there is None:
        offsets[1:] = np.arange(1, count + 1, dtype=np.int32) * np.int32(width)
        return matrix.reshape(-1), offsets
    total = np.full(count, sum(isinstance(f, int) for f in fields), np.int32)
    for one in fields:
        if not isinstance(one, int):
            total += one[1]
    np.cumsum(total, out=offsets[1:])
    return matrix[there], offsets
