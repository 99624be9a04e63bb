"""Which topic and partition each row of a batch goes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka.arrow.binary import binary
from airflow_kafka_eos.kafka.arrow.partitioner import assign
from airflow_kafka_eos.kafka.arrow.plain import numbers, truths


class UnplacedRow(Exception):
    """A row has no place: its topic (None: null) is not there, or its partition is not."""

    def __init__(self, topic: str | None, partition: int | None = None) -> None:
        super().__init__(topic, partition)
        self.topic = topic
        self.partition = partition


def column(batch: pa.RecordBatch, name: str) -> Any:
    """A column by name; None when it is not there or holds only nulls."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    found = batch.column(index)
    return None if found.null_count == len(found) else found


def place(
    batch: pa.RecordBatch,
    topics: Mapping[str, int],
    default_topic: str | None,
    partitioner: str,
    *,
    start: int = 0,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The places of a batch's rows, from its columns ``topic``, ``partition`` and ``key`` (each may be missing).

    A partition that a row names itself is kept; else its key chooses. Every writer and the arrangement of a load of
    scope ``load`` go by this one function, so a record has the same partition in both scopes.

    :param topics: partitions by topic.
    :param start: see :func:`~airflow_kafka_eos.kafka.arrow.partitioner.assign`.
    :returns: per row the topic, as its place in ``sorted(topics)``, and the partition.
    :raises UnplacedRow: a row's topic or partition is not there.
    """
    names = sorted(topics)
    codes = _topic_codes(column(batch, "topic"), batch.num_rows, names, default_topic)
    keys = column(batch, "key")
    keys = None if keys is None else binary(keys)
    explicit = column(batch, "partition")
    present = [int(code) for code in (codes[:1] if len(topics) == 1 else np.unique(codes))]
    if explicit is None and len(present) == 1:
        return codes, assign(keys, batch.num_rows, topics[names[present[0]]], partitioner, start=start)
    found = np.empty(batch.num_rows, np.int32)
    named = np.zeros(batch.num_rows, np.bool_) if explicit is None else truths(explicit.is_valid())
    for code in present:
        count = topics[names[code]]
        rows = np.flatnonzero((codes == code) & ~named)
        mine = keys if keys is None or len(rows) == len(codes) else keys.take(numbers(rows))
        found[rows] = assign(mine, len(rows), count, partitioner, start=start)
        if explicit is not None:
            rows = np.flatnonzero((codes == code) & named)
            wanted = pc.fill_null(explicit, -1).to_numpy(zero_copy_only=False)[rows]
            outside = (wanted < 0) | (wanted >= count)
            if outside.any():
                raise UnplacedRow(names[code], int(wanted[outside][0]))
            found[rows] = wanted
    return codes, found


def _topic_codes(
    column: Any, rows: int, names: list[str], default_topic: str | None
) -> npt.NDArray[np.int32]:
    if column is None:
        if default_topic is None and rows:
            raise UnplacedRow(None)
        return np.full(rows, names.index(default_topic) if default_topic else 0, np.int32)
    encoded = column.dictionary_encode()
    code_of = []
    for name in encoded.dictionary.to_pylist():
        if name not in names:
            raise UnplacedRow(name)
        code_of.append(names.index(name))
    indices = encoded.indices
    if indices.null_count:
        if default_topic is None:
            raise UnplacedRow(None)
        code_of.append(names.index(default_topic))
        indices = pc.fill_null(indices, pa.scalar(len(code_of) - 1, indices.type))
    found: npt.NDArray[np.int32] = np.array(code_of, np.int32)[indices.to_numpy(zero_copy_only=False)]
    return found
