"""Rows in, sealed record batches out: sorted by partition, encoded in one go, cut to size. No I/O.

Rows of one partition are cut so that no batch exceeds its limit. What stands in a batch's records section is made here
from columns, all rows at once (KIP-98; Kafka's DefaultRecord). One record is

    length, attributes (0), timestamp delta, offset delta, key length, key, value length, value, header count, headers

with all numbers but the attributes as zig-zag varints of 1 to 5 (64-bit: 10) bytes, and -1 for the length of a null.
One varint at a time: :mod:`airflow_kafka_eos.kafka.records.varint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from airflow_kafka_eos.kafka.producer.interface import Tally
from airflow_kafka_eos.kafka.records.batch import HEADER_BYTES, Compressor, OpenBatch, SealedBatch, seal
from airflow_kafka_eos.kafka.records.digest import header_section
from airflow_kafka_eos.kafka.records.varint import zig_zag
from airflow_kafka_eos.transaction import SEQUENCE_MODULUS, PreparedTxnState, TopicPartition

#: Bytes of a lone record's timestamp delta and offset delta.
_ALONE = 1 + 1
#: Open batches of all partitions together. With many partitions the largest are sealed before they are full.
_OPEN_MOST = 32 * 1024 * 1024
#: What stays open and is less than this share of what was encoded with it is copied: a view would hold on to all of it.
_VIEW_SHARE = 1 / 8

Place = npt.NDArray[np.int32]
#: What a record may take beside ``Frames.fixed``: its length, offset delta (5 bytes each) and timestamp delta.
FRAME_MOST = 5 + 5 + 1
FRAME_MOST_TIMED = 5 + 5 + 10
_NO_HEADERS = b"\x00"
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


class TooLarge(Exception):
    """A record does not fit its topic even alone.

    :param row: its place in the columns that were added.
    """

    def __init__(self, row: int, partition: TopicPartition, size: int) -> None:
        super().__init__(row, partition, size)
        self.row = row
        self.partition = partition
        self.size = size


class Batcher:
    """Collects one transaction's rows into record batches.

    :param limits: partition -> its topic's ``max.message.bytes``.
    :param batch_bytes: size of a batch before compression, at most; less where the topic wants less.
    :param codec: see :func:`~airflow_kafka_eos.kafka.records.compression.compressor`.
    :param tally: counts and digests what passes through.
    """

    def __init__(
        self,
        state: PreparedTxnState,
        limits: Mapping[str, int],
        batch_bytes: int,
        codec: tuple[int, Compressor | None],
        tally: Tally,
        now_ms: Callable[[], int],
    ) -> None:
        self._state = state
        self._limits = limits
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._tally = tally
        self._now_ms = now_ms
        self._open: dict[TopicPartition, OpenBatch] = {}
        self._open_bytes = 0
        self._timed = False
        # per partition: sequence of the next record, number of the next batch
        self._next: dict[TopicPartition, tuple[int, int]] = {}

    def add(self, columns: Columns, places: Place, partitions: list[TopicPartition]) -> Iterator[SealedBatch]:
        """Take rows; yields the batches that became full.

        :param places: for each row an index into ``partitions``.
        :raises TooLarge: before any row was taken.
        """
        now = self._now_ms()
        self._timed = self._timed or columns.timestamps is not None
        if self._timed and columns.timestamps is None:
            # or they would get the base timestamp of an open batch, which may be years ago
            columns = replace(columns, timestamps=np.full(columns.rows, now, np.int64))
        order = None
        if len(places) and int(places.min()) != int(places.max()):
            # 8 or 16 bits are sorted in linear time; stable, for the order of a key's records
            order = np.argsort(_narrow(places), kind="stable")
            columns, places = columns.take(order), places[order]
        frames = measure(columns)
        edges = np.flatnonzero(np.diff(places)) + 1
        groups = [
            (partitions[int(places[a])], int(a), int(b))
            for a, b in zip([0, *edges], [*edges, len(places)], strict=True)
        ]
        for partition, start, end in groups:
            self._check_sizes(frames, partition, start, end, order)
        segments, offset_deltas, timestamp_deltas = self._plan(columns, frames, groups, now)
        encoded = encode(columns, frames, offset_deltas, timestamp_deltas)
        for partition, start, end in groups:
            self._count(columns, frames, partition, start, end, now)
        for partition, start, end, size, full, base in segments:
            if end > start:
                batch = self._open.get(partition)
                if batch is None:
                    batch = self._open[partition] = OpenBatch(base, base)
                records = encoded.records(start, end)
                if not full and size < _VIEW_SHARE * encoded.bytes:
                    records = [b"".join(records)]
                batch.pieces += records
                batch.records += end - start
                batch.size += size
                self._open_bytes += size
                if columns.timestamps is not None:
                    batch.max_timestamp = max(batch.max_timestamp, int(columns.timestamps[start:end].max()))
            if full:
                yield self._seal(partition)
        while self._open_bytes > _OPEN_MOST:
            yield self._seal(max(self._open, key=lambda p: self._open[p].size))

    def finish(self) -> Iterator[SealedBatch]:
        """The batches that are still open."""
        while self._open:
            yield self._seal(next(iter(self._open)))

    # -- private -------------------------------------------------------------------------------------------------

    def _check_sizes(self, frames: Frames, partition: TopicPartition, start: int, end: int, order: Any) -> None:
        limit = self._limits[partition.topic]
        row = start + int(frames.fixed[start:end].argmax())
        body = int(frames.fixed[row]) + _ALONE
        if HEADER_BYTES + len(zig_zag(body)) + body > limit:
            raise TooLarge(row if order is None else int(order[row]), partition, int(frames.content[row]))

    def _plan(
        self, columns: Columns, frames: Frames, groups: list[tuple[TopicPartition, int, int]], now: int
    ) -> tuple[list[tuple[TopicPartition, int, int, int, bool, int]], npt.NDArray[np.int32], Any]:
        """Which rows go into which batch: (partition, start, end, size, full, base timestamp), and the deltas."""
        stamps = columns.timestamps
        cumulated = upper_bounds(frames.fixed, stamps is not None)
        offset_deltas = np.arange(columns.rows, dtype=np.int32)
        timestamp_deltas = None if stamps is None else stamps.copy()
        segments = []
        for partition, start, end in groups:
            limit = min(self._batch_bytes, self._limits[partition.topic]) - HEADER_BYTES
            batch = self._open.get(partition)
            at, records = start, batch.records if batch else 0
            base = None if batch is None else batch.base_timestamp
            ends = cut(cumulated, start, end, batch.size if batch else 0, limit)
            for edge in ends:
                if edge > at:
                    if base is None:
                        base = now if stamps is None else int(stamps[at])
                    offset_deltas[at:edge] += records - at
                    if timestamp_deltas is not None:
                        timestamp_deltas[at:edge] -= base
                size = int(cumulated[edge] - cumulated[at])
                segments.append((partition, at, edge, size, edge != ends[-1], base or 0))
                if edge != ends[-1]:
                    at, records, base = edge, 0, None
        return segments, offset_deltas, timestamp_deltas

    def _count(
        self, columns: Columns, frames: Frames, partition: TopicPartition, start: int, end: int, now: int
    ) -> None:
        found = self._tally.of(partition)
        found.records += end - start
        found.bytes += int(frames.content[start:end].sum())
        found.date(now if columns.timestamps is None else int(columns.timestamps[start:end].min()))
        part = columns.slice(start, end - start)
        lengths = np.stack(
            [frames.key_lengths[start:end], frames.value_lengths[start:end], frames.header_lengths[start:end]], axis=1
        )
        headers = header_section([]) * (end - start) if part.headers is None else data_of(part.headers)
        found.digest.update_columns(
            np.ascontiguousarray(lengths, "<i4"), _content(part.key), _content(part.value), headers
        )

    def _seal(self, partition: TopicPartition) -> SealedBatch:
        batch = self._open.pop(partition)
        self._open_bytes -= batch.size
        sequence, order = self._next.get(partition, (0, 0))
        self._next[partition] = ((sequence + batch.records) % SEQUENCE_MODULUS, order + 1)
        return seal(batch, partition, order, self._state, sequence, self._codec)


def _content(column: pa.BinaryArray | None) -> memoryview | bytes:
    return b"" if column is None else data_of(column)


def _narrow(places: Place) -> npt.NDArray[Any]:
    return places.astype(np.uint8 if int(places.max()) < 256 else np.uint16 if int(places.max()) < 65536 else np.int32)


# -- where batches end -----------------------------------------------------------------------------------------------


def upper_bounds(fixed: npt.NDArray[Any], timed: bool) -> npt.NDArray[np.int64]:
    """Cumulated upper bounds of the encoded sizes: entry i is that of all rows before row i."""
    found = np.zeros(len(fixed) + 1, np.int64)
    np.cumsum(fixed + (FRAME_MOST_TIMED if timed else FRAME_MOST), dtype=np.int64, out=found[1:])
    return found


def cut(cumulated: npt.NDArray[np.int64], start: int, end: int, used: int, limit: int) -> list[int]:
    """Ends of the batches that rows ``start`` to ``end`` - 1 fill; the last one, ``end``, may stay open.

    :param cumulated: see :func:`upper_bounds`.
    :param used: bytes that the open batch has already; with rows before ``start`` there may be no room for one more:
        then the first end is ``start`` itself.
    :param limit: bytes of records in a batch. A single record above it gets a batch of its own.
    """
    ends = []
    room = limit - used
    at = start
    while int(cumulated[end] - cumulated[at]) > room:
        fits = int(np.searchsorted(cumulated, cumulated[at] + room, side="right")) - 1
        if fits <= at and room == limit:
            fits = at + 1
        fits = min(max(fits, at), end)
        if fits == end:
            break
        ends.append(fits)
        at, room = fits, limit
    ends.append(end)
    return ends


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
    tail = _NO_HEADERS if columns.headers is None else b""
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
