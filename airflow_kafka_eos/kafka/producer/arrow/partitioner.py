"""Which topic and partition each row of a batch goes to: the one that it names, or the one that its key chooses.

A key chooses as in Kafka's clients. The names are librdkafka's (its setting ``partitioner``); ``murmur2_random`` is the
Java client's default for keyed records and ours. What has no key, or none that the partitioner looks at, is spread
evenly, in runs: runs make large batches (KIP-480's sticky partitioner has the same reason).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_eos.kafka.producer.arrow import kernel_rows
from airflow_kafka_eos.kafka.producer.arrow.binary import binary, lengths_of, numbers, offsets_of, truths
from airflow_kafka_eos.kafka.records.kernel import kernel

#: name -> (hash, what is spread evenly instead of hashed)
_KNOWN = {
    "murmur2_random": ("murmur2", "null"),
    "murmur2": ("murmur2", "nothing"),
    "consistent_random": ("crc32", "null and empty"),
    "consistent": ("crc32", "nothing"),
    "random": ("", "all"),
}

Partitions = npt.NDArray[np.int32]
_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


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
    :param start: see :func:`assign`.
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


def assign(keys: pa.BinaryArray | None, rows: int, partitions: int, partitioner: str, *, start: int = 0) -> Partitions:
    """A partition for each row.

    :param keys: binary column, null allowed; None when no row has a key.
    :param partitions: how many the topic has.
    :param partitioner: one of :data:`~airflow_kafka_eos.kafka.producer.options.PARTITIONERS`.
    :param start: the partition where the first run of rows without a key goes.
    """
    kind, spread = _KNOWN[partitioner]
    if spread == "all" or (keys is None and spread != "nothing"):
        return evenly(rows, partitions, start)
    if keys is None:
        keys = pa.nulls(rows, pa.binary())
    if kind == "murmur2":
        native = kernel()
        hashes = (murmur2(keys) if native is None else kernel_rows.murmur2(native, keys)) & np.uint32(0x7FFFFFFF)
    else:
        hashes = crc32(keys)
    found = (hashes % np.uint32(partitions)).astype(np.int32)
    lengths = lengths_of(keys)
    if spread == "null" and keys.null_count:
        _fill(found, lengths < 0, partitions, start)
    elif spread == "null and empty":
        _fill(found, lengths <= 0, partitions, start)
    return found


def _fill(found: Partitions, mask: Any, partitions: int, start: int) -> None:
    count = int(mask.sum())
    if count:
        found[mask] = evenly(count, partitions, start)


def evenly(rows: int, partitions: int, start: int = 0) -> Partitions:
    """Rows cut into as many runs as there are partitions, one run each, beginning with partition ``start``."""
    runs = np.arange(rows, dtype=np.int64) * partitions // max(rows, 1)
    return ((runs + start) % partitions).astype(np.int32)


def crc32(keys: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """CRC-32 (zlib's) of each key; a null is hashed as an empty one."""
    return np.fromiter((zlib.crc32(k or b"") for k in keys.to_pylist()), np.uint32, len(keys))


def murmur2(keys: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """The Java client's murmur2 (``org.apache.kafka.common.utils.Utils``) of each key; a null is hashed as empty.

    Word by word, all keys at once that have such a word: rows are taken in the order of their lengths.
    """
    if len(keys) == 0:
        return np.empty(0, np.uint32)
    lengths = np.maximum(lengths_of(keys), 0)
    starts = offsets_of(keys)[:-1].astype(np.int64)
    buffer = keys.buffers()[2]
    data = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(1, np.uint8)
    order = None
    if int(lengths.min()) != int(lengths.max()) or int(starts[-1] - starts[0]) != int(lengths[0]) * (len(keys) - 1):
        order = np.argsort(lengths, kind="stable")[::-1]
        lengths, starts = lengths[order], starts[order]
    hashes = np.bitwise_xor(_SEED, lengths.astype(np.uint32))
    # every byte of the data as the beginning of a little-endian word, without a copy
    view = np.ndarray(max(len(data) - 3, 0), np.dtype("<u4"), data, strides=(1,))
    for word in range(int(lengths[0]) >> 2):
        if order is None:
            there = len(hashes)
            # keys of one length lie at equal distances
            k = view[int(starts[0]) + 4 * word :: int(lengths[0])][:there] * _M
        else:
            # the longest come first: those that have this word
            there = int(np.searchsorted(-(lengths >> 2), -word, side="left"))
            k = view[starts[:there] + 4 * word] * _M
        k ^= k >> np.uint32(24)
        k *= _M
        h = hashes[:there]
        h *= _M
        h ^= k
    _tail(hashes, data, lengths, starts)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    if order is None:
        return hashes
    found = np.empty_like(hashes)
    found[order] = hashes
    return found


def _tail(hashes: npt.NDArray[np.uint32], data: Any, lengths: Any, starts: Any) -> None:
    """The last one to three bytes of each key, behind its last whole word."""
    rest = lengths & 3
    ends = starts + (lengths & ~3)
    for byte in (2, 1, 0):
        has = np.flatnonzero(rest > byte)
        if len(has):
            hashes[has] ^= data[ends[has] + byte].astype(np.uint32) << np.uint32(8 * byte)
    has = np.flatnonzero(rest)
    hashes[has] *= _M
