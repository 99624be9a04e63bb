"""Where batches end: rows of one partition, cut so that no batch exceeds its limit. No I/O."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: What a record may take beside ``Frames.fixed``: its length, offset delta (5 bytes each) and timestamp delta.
FRAME_MOST = 5 + 5 + 1
FRAME_MOST_TIMED = 5 + 5 + 10


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
