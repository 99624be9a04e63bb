"""A column of headers becomes the header section of each record: count, then name and value of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka.arrow import varint
from airflow_kafka_eos.kafka.arrow.binary import binary, from_parts, lengths_of


class NamelessHeader(Exception):
    """A header is null, or its name is: Kafka has no such headers."""


def sections(column: pa.Array) -> tuple[pa.BinaryArray, npt.NDArray[np.int64]] | tuple[None, None]:
    """Encode a column of array<struct<key:string,value:binary>>.

    :returns: each row's header section, and the bytes of its names and values; (None, None) when no row has any.
    :raises NamelessHeader: a header is null, or has no name.
    """
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int32)
    if not counts.any():
        return None, None
    flat = column.flatten()
    if flat.null_count or flat.field(0).null_count:
        raise NamelessHeader
    # flatten() of a struct array takes its own offset and nulls into account, field() does not
    names, values = (binary(part) for part in flat.flatten())
    name_lengths, value_lengths = lengths_of(names), lengths_of(values)
    each = pc.binary_join_element_wise(
        from_parts(*varint.rows([varint.field(name_lengths)], len(flat))),
        names,
        from_parts(*varint.rows([varint.field(value_lengths)], len(flat))),
        values,
        b"",
        null_handling="replace",
        null_replacement=b"",
    )
    ends = np.concatenate([[0], np.cumsum(counts)])
    content = np.concatenate([[0], np.cumsum(name_lengths + np.maximum(value_lengths, 0), dtype=np.int64)])
    # a row's headers lie side by side in `each`: only the offsets change
    starts = _offsets(each)[ends].astype(np.int32)
    rows = pa.BinaryArray.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(starts), each.buffers()[2]])
    count_bytes = from_parts(*varint.rows([varint.field(counts)], len(column)))
    return pc.binary_join_element_wise(count_bytes, rows, b""), content[ends[1:]] - content[ends[:-1]]


def _offsets(column: Any) -> Any:
    return np.frombuffer(column.buffers()[1], np.int32)[: len(column) + 1]
