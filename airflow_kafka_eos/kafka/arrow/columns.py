"""A batch as Spark hands it over becomes the columns that are encoded, and what cannot be written is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka import refusals
from airflow_kafka_eos.kafka.arrow.binary import binary
from airflow_kafka_eos.kafka.arrow.encode import Columns
from airflow_kafka_eos.kafka.arrow.headers import NamelessHeader, sections
from airflow_kafka_eos.kafka.arrow.placing import column
from airflow_kafka_eos.kafka.writer import WriteTarget

#: Bytes of a batch that are looked at in one go: bounds the memory beside Arrow's own, and the 32-bit offsets.
_PIECE_BYTES = 32 * 1024 * 1024


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch, or parts of it that are small enough to be copied once or twice."""
    if batch.num_rows > 1 and batch.nbytes > _PIECE_BYTES:
        half = batch.num_rows // 2
        yield from pieces(batch.slice(0, half))
        yield from pieces(batch.slice(half))
    elif batch.num_rows:
        yield batch


def read(batch: pa.RecordBatch, target: WriteTarget, now_ms: int) -> Columns:
    """The columns ``key``, ``value``, ``headers`` and ``timestamp`` of a batch.

    :raises RecordError: a header without a name, a timestamp before 1970.
    """
    key, value = (column(batch, name) for name in ("key", "value"))
    headers = column(batch, "headers")
    try:
        encoded, header_bytes = (None, None) if headers is None else sections(headers)
    except NamelessHeader:
        raise refusals.no_header_name(target) from None
    timestamps = column(batch, "timestamp")
    if timestamps is not None:
        # numbers below a millisecond are cut off
        whole = pc.cast(timestamps, pa.timestamp("ms"), safe=False).view(pa.int64())
        # looked at as they came: -1 µs would be cut to 0
        early = pc.fill_null(pc.less(timestamps.view(pa.int64()), 0), False).to_numpy(zero_copy_only=False)
        timestamps = pc.fill_null(whole, now_ms).to_numpy(zero_copy_only=False)
        if early.any():
            row = int(np.flatnonzero(early)[0])
            topics = column(batch, "topic")
            topic = None if topics is None else topics[row].as_py()
            raise refusals.bad_timestamp(topic or target.default_topic or "", min(int(timestamps[row]), -1), target)
        timestamps = timestamps.astype(np.int64, copy=False)
    return Columns(
        batch.num_rows,
        None if key is None else binary(key),
        None if value is None else binary(value),
        encoded,
        header_bytes,
        timestamps,
    )
