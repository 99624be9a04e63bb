"""Varints for whole columns at once: the numbers of a record's frame, as Kafka writes them.

Kafka's record format (v2, KIP-98) has lengths and deltas as zig-zag varints of 1 to 5 (64-bit: 10) bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

#: Zig-zagged numbers, 32 or 64 bits wide.
Numbers = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
#: One field of each row: numbers and their :func:`sizes`, or one literal byte for all rows.
Field = tuple[Numbers, npt.NDArray[np.uint8]] | int


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
