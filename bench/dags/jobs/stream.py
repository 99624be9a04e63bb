"""The rows of ``rows.py``, as an Arrow table."""

from __future__ import annotations

import pyarrow as pa


def load(prefix, count):
    numbers = [str(n) for n in range(count)]
    return pa.table({"key": numbers, "value": [f"{prefix} {n}" for n in numbers]})
