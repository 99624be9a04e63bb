"""The records section in one pass: what :mod:`.encoding` does, by :mod:`airflow_kafka_eos.kafka.records.kernel`.

It gathers, encodes and lays out for the digest at once, where numpy and Arrow make two copies of all data besides; the
bytes are the same (tests/kafka/test_kernel.py). And murmur2, as :mod:`.partitioner` has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_kafka_eos.kafka.producer.arrow.binary import lengths_of, offsets_of
from airflow_kafka_eos.kafka.producer.arrow.encoding import Columns, Run, Segment, measure
from airflow_kafka_eos.kafka.records.kernel import Column, Kernel, Streams
from airflow_kafka_eos.kafka.records.split import LENGTHS_BYTES, NO_HEADERS


def murmur2(kernel: Kernel, keys: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """See :func:`.partitioner.murmur2`."""
    found = np.empty(len(keys), np.uint32)
    if len(keys):
        of = _Held(keys, lengths_of(keys))
        kernel.murmur2(len(keys), of.column, found.ctypes.data)
    return found


class _Held:
    """A column as C sees it; keeps what it points to."""

    def __init__(self, column: pa.BinaryArray | None, lengths: npt.NDArray[np.int32] | None) -> None:
        self._kept = (column, lengths)
        if column is None or lengths is None:
            self.column = Column(None, None, None)
            return
        lengths = np.ascontiguousarray(lengths)
        offsets, data = offsets_of(column), column.buffers()[2]
        self._kept = (column, lengths)
        self.column = Column(offsets.ctypes.data, None if data is None else data.address, lengths.ctypes.data)


class KernelRows:
    """Rows that are encoded from where they lie, a segment at a time. See :class:`.encoding.Rows`.

    :param columns: and ``order``: see :class:`.encoding.GatheredRows`.
    """

    def __init__(self, kernel: Kernel, columns: Columns, order: npt.NDArray[np.intp] | None) -> None:
        frames = measure(columns)
        self._kernel = kernel
        self._columns = columns
        self._order = order
        self._held = (
            _Held(columns.key, frames.key_lengths),
            _Held(columns.value, frames.value_lengths),
            _Held(columns.headers, frames.header_lengths),
        )
        self._content = frames.content
        self.fixed: npt.NDArray[Any] = frames.fixed
        self.timestamps, self._header_bytes = columns.timestamps, columns.header_bytes
        if order is not None:
            self.fixed = self.fixed[order]
            self.timestamps, self._header_bytes = (
                None if of is None else of[order] for of in (self.timestamps, self._header_bytes)
            )

    def encode(self, segments: Sequence[Segment]) -> Iterator[Run]:
        """See :class:`.encoding.Rows`."""
        key, value, headers = self._held
        order, stamps = self._order, self.timestamps
        for s in segments:
            count = s.end - s.start
            out, lengths = _room(s.size), _room(count * LENGTHS_BYTES)
            rooms = [None if order is None or of.column.offsets is None else _room(s.size) for of in self._held]
            streams = Streams(*(None if room is None else room.address for room in rooms), lengths.address)
            size = self._kernel.records(
                count,
                None if order is None else order[s.start :].ctypes.data,
                s.start,
                key.column,
                value.column,
                headers.column,
                s.first_delta,
                None if stamps is None else stamps[s.start :].ctypes.data,
                s.base_timestamp,
                out.address,
                streams,
            )
            assert size <= s.size
            if order is None:
                keys, values, sections = self._columns.contents(s.start, count)
            else:
                ends = (streams.keys, streams.values, streams.headers)
                keys, values, sections = (
                    b"" if room is None else memoryview(room)[: end - room.address]
                    for room, end in zip(rooms, ends, strict=True)
                )
                if headers.column.offsets is None:
                    sections = NO_HEADERS * count
            content = len(keys) + len(values)
            if self._header_bytes is not None:
                content += int(self._header_bytes[s.start : s.end].sum())
            yield Run([memoryview(out)[:size]], content, lengths, keys, values, sections)

    def content_of(self, row: int) -> int:
        """See :class:`.encoding.Rows`."""
        return int(self._content[row if self._order is None else self._order[row]])


def _room(size: int) -> pa.Buffer:
    """Memory that is used again once it is free. What numpy frees, the system takes back, and gives anew by page."""
    return pa.allocate_buffer(size)
