"""The records section in one pass: what :mod:`.encoding` does, by a few lines of C (``kernel.c``).

It gathers, encodes and lays out for the digest at once, where numpy and Arrow make two copies of all data besides; the
bytes are the same (tests/kafka/test_kernel.py). A wheel for Linux brings it; an installation from source compiles it if
there is a C compiler (docs/adr/0029). Where it is missing, or is for another CPU, the slower way is taken.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_kafka_eos.kafka.producer.arrow.binary import lengths_of, offsets_of
from airflow_kafka_eos.kafka.producer.arrow.encoding import NO_HEADERS, Columns, Run, Segment, measure

_log = logging.getLogger(__name__)

#: ``kernel.c`` has the same one.
VERSION = 1
#: Not .so: whoever walks through the package would take it for an extension module, and import it.
LIBRARY = Path(__file__).with_name("kernel.elf")
#: Environment variable; ``off``: the slower way is taken. For whoever has to find out whether it is the kernel.
SWITCH = "AIRFLOW_KAFKA_EOS_KERNEL"

#: Of key, value and header section, for the digest.
LENGTHS_BYTES = 3 * 4


class _Column(ctypes.Structure):
    _fields_ = (("offsets", ctypes.c_void_p), ("data", ctypes.c_void_p), ("lengths", ctypes.c_void_p))


class _Streams(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("keys", "values", "headers", "lengths"))


class Kernel:
    """The compiled functions.

    :raises OSError: the library is not there, or not for this machine.
    """

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        if loaded.kafka_eos_version() != VERSION:
            raise OSError(f"{library} is of another version")
        column, pointer = ctypes.POINTER(_Column), ctypes.c_void_p
        number = ctypes.c_int64
        self._records = loaded.kafka_eos_records
        self._records.argtypes = [
            number, pointer, number, column, column, column, ctypes.c_int32, pointer, number, pointer,
            ctypes.POINTER(_Streams),
        ]  # fmt: skip
        self._records.restype = number
        self._murmur2 = loaded.kafka_eos_murmur2
        self._murmur2.argtypes = [number, column, pointer]
        self._murmur2.restype = None

    def rows(self, columns: Columns, order: npt.NDArray[np.intp] | None) -> KernelRows:
        """See :class:`.encoding.GatheredRows`, whose parameters these are."""
        return KernelRows(self._records, columns, order)

    def murmur2(self, keys: pa.BinaryArray) -> npt.NDArray[np.uint32]:
        """See :func:`.partitioner.murmur2`."""
        found = np.empty(len(keys), np.uint32)
        if len(keys):
            of = _Held(keys, lengths_of(keys))
            self._murmur2(len(keys), of.column, found.ctypes.data)
        return found


@cache
def kernel() -> Kernel | None:
    """The kernel of this installation; None where there is none, which is said once."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "false"):
        return None
    try:
        return Kernel(LIBRARY)
    except (OSError, AttributeError) as e:
        _log.info("records are encoded by numpy and Arrow, which costs more CPU: the kernel cannot be loaded (%s)", e)
        return None


class _Held:
    """A column as C sees it; keeps what it points to."""

    def __init__(self, column: pa.BinaryArray | None, lengths: npt.NDArray[np.int32] | None) -> None:
        self._kept = (column, lengths)
        if column is None or lengths is None:
            self.column = _Column(None, None, None)
            return
        lengths = np.ascontiguousarray(lengths)
        offsets, data = offsets_of(column), column.buffers()[2]
        self._kept = (column, lengths)
        self.column = _Column(offsets.ctypes.data, None if data is None else data.address, lengths.ctypes.data)


class KernelRows:
    """Rows that are encoded from where they lie, a segment at a time. See :class:`.encoding.Rows`."""

    def __init__(self, records: Any, columns: Columns, order: npt.NDArray[np.intp] | None) -> None:
        frames = measure(columns)
        self._records = records
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
            streams = _Streams(*(None if room is None else room.address for room in rooms), lengths.address)
            size = self._records(
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
