"""The partition of each record's key, as Kafka's clients choose it.

The names are librdkafka's (its setting ``partitioner``); ``murmur2_random`` is the Java client's default for keyed
records and ours. What has no key, or none that the partitioner looks at, is spread evenly, in runs: runs make large
batches (KIP-480's sticky partitioner has the same reason).
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_kafka_eos.kafka.arrow.binary import lengths_of, offsets_of

#: name -> (hash, what is spread evenly instead of hashed)
_KNOWN = {
    "murmur2_random": ("murmur2", "null"),
    "murmur2": ("murmur2", "nothing"),
    "consistent_random": ("crc32", "null and empty"),
    "consistent": ("crc32", "nothing"),
    "random": ("", "all"),
}

Partitions = npt.NDArray[np.int32]


def assign(keys: pa.BinaryArray | None, rows: int, partitions: int, partitioner: str, *, start: int = 0) -> Partitions:
    """A partition for each row.

    :param keys: binary column, null allowed; None when no row has a key.
    :param partitions: how many the topic has.
    :param partitioner: one of ``producer_options.PARTITIONERS``.
    :param start: the partition where the first run of rows without a key goes.
    """
    kind, spread = _KNOWN[partitioner]
    if spread == "all" or (keys is None and spread != "nothing"):
        return evenly(rows, partitions, start)
    if keys is None:
        keys = pa.nulls(rows, pa.binary())
    hashes = murmur2(keys) & np.uint32(0x7FFFFFFF) if kind == "murmur2" else crc32(keys)
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


_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


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
