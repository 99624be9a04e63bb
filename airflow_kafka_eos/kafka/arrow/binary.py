"""Binary columns of Arrow, seen as numpy arrays and buffers, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_kafka_eos.kafka.arrow.plain import truths


def binary(column: pa.Array) -> pa.BinaryArray:
    """A string or binary column of any width as binary with 32-bit offsets; UTF-8 as it stands.

    :param column: of less than 2 GiB.
    """
    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        # a slice may begin behind the 2 GiB that 32-bit offsets reach: only its own part counts
        return pa.concat_arrays([column]).cast(pa.binary()) if column.offset else column.cast(pa.binary())
    return column.cast(pa.binary())


def from_parts(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """A binary column of bytes and offsets (one more than entries)."""
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def single(content: bytes) -> pa.BinaryArray:
    """A binary column of one entry."""
    return from_parts(np.frombuffer(content, np.uint8), np.array([0, len(content)], np.int32))


def offsets_of(column: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where each entry starts in the data buffer, and where the last one ends."""
    whole = np.frombuffer(column.buffers()[1], np.int32)
    return whole[column.offset : column.offset + len(column) + 1]


def lengths_of(column: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Length of each entry in bytes, -1 for null."""
    found: npt.NDArray[np.int32] = np.diff(offsets_of(column))
    if column.null_count:
        found[truths(column.is_null())] = -1
    return found


def data_of(column: pa.BinaryArray) -> memoryview:
    """The bytes of all entries, one after the other. The buffer itself may be longer: it is padded.

    Bytes that stand behind a null (Arrow allows it) are left out.
    """
    offsets = offsets_of(column)
    if column.null_count and int(np.maximum(lengths_of(column), 0).sum()) != int(offsets[-1] - offsets[0]):
        return data_of(column.drop_null())
    buffer: Any = column.buffers()[2]
    return memoryview(b"") if buffer is None else memoryview(buffer)[offsets[0] : offsets[-1]]
