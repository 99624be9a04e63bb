"""Binary columns of Arrow, seen as numpy arrays and buffers: without copies, and without pandas.

pyarrow imports pandas, where it is installed, for its own ``pa.array`` and ``to_numpy``, and for every scalar that it
makes of a Python value: 0.26 s of a core and 50 MB in each Spark task (pyarrow 26). What keys and values go by is here;
what fewer loads have is left to pyarrow: timestamps, headers, topics and partitions that rows name themselves, formats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[Any]) -> pa.Array:
    """A column of integers, without a copy and without nulls.

    :raises TypeError: other numbers, or of another byte order: their bytes mean something else in Arrow.
    """
    whole = np.ascontiguousarray(values)
    if whole.dtype.kind not in "iu" or not whole.dtype.isnative:
        raise TypeError(f"{whole.dtype} are no integers of this machine")
    return pa.Array.from_buffers(pa.from_numpy_dtype(whole.dtype), len(whole), [None, pa.py_buffer(whole)])


def truths(column: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """A boolean column without nulls."""
    if not len(column):
        return np.zeros(0, np.bool_)
    bits = np.unpackbits(np.frombuffer(column.buffers()[1], np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)


def binary(column: pa.Array) -> pa.BinaryArray:
    """A string or binary column of any width as binary with 32-bit offsets; UTF-8 as it stands.

    :param column: of less than 2 GiB.
    """
    if pa.types.is_binary(column.type):
        return column
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = own_part(column)
    return column.cast(pa.binary())


def own_part(column: pa.Array) -> pa.Array:
    """A column without what a slice leaves out: it may begin behind the 2 GiB that 32-bit offsets reach."""
    return pa.concat_arrays([column]) if column.offset else column


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
