"""Between numpy and Arrow, without pandas.

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
