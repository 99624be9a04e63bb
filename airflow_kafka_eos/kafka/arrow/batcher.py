"""Rows in, sealed record batches out: sorted by partition, encoded in one go, cut to size. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_kafka_eos.kafka.arrow.batches import HEADER_BYTES, OpenBatch, SealedBatch, seal
from airflow_kafka_eos.kafka.arrow.binary import data_of
from airflow_kafka_eos.kafka.arrow.compression import Compressor
from airflow_kafka_eos.kafka.arrow.cutting import cut, upper_bounds
from airflow_kafka_eos.kafka.arrow.encode import Columns, Frames, encode, measure
from airflow_kafka_eos.kafka.digest import header_section
from airflow_kafka_eos.kafka.tally import Tally
from airflow_kafka_eos.kafka.varints import zig_zag
from airflow_kafka_eos.transaction import SEQUENCE_MODULUS, PreparedTxnState, TopicPartition

#: Bytes of a lone record's timestamp delta and offset delta.
_ALONE = 1 + 1
#: Open batches of all partitions together. With many partitions the largest are sealed before they are full.
_OPEN_MOST = 32 * 1024 * 1024
#: What stays open and is less than this share of what was encoded with it is copied: a view would hold on to all of it.
_VIEW_SHARE = 1 / 8

Place = npt.NDArray[np.int32]


class TooLarge(Exception):
    """A record does not fit its topic even alone.

    :param row: its place in the columns that were added.
    """

    def __init__(self, row: int, partition: TopicPartition, size: int) -> None:
        super().__init__(row, partition, size)
        self.row = row
        self.partition = partition
        self.size = size


class Batcher:
    """Collects one transaction's rows into record batches.

    :param limits: partition -> its topic's ``max.message.bytes``.
    :param batch_bytes: size of a batch before compression, at most; less where the topic wants less.
    :param codec: see :func:`~airflow_kafka_eos.kafka.arrow.compression.compressor`.
    :param tally: counts and digests what passes through.
    """

    def __init__(
        self,
        state: PreparedTxnState,
        limits: Mapping[str, int],
        batch_bytes: int,
        codec: tuple[int, Compressor | None],
        tally: Tally,
        now_ms: Callable[[], int],
    ) -> None:
        self._state = state
        self._limits = limits
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._tally = tally
        self._now_ms = now_ms
        self._open: dict[TopicPartition, OpenBatch] = {}
        self._open_bytes = 0
        self._timed = False
        # per partition: sequence of the next record, number of the next batch
        self._next: dict[TopicPartition, tuple[int, int]] = {}

    def add(self, columns: Columns, places: Place, partitions: list[TopicPartition]) -> Iterator[SealedBatch]:
        """Take rows; yields the batches that became full.

        :param places: for each row an index into ``partitions``.
        :raises TooLarge: before any row was taken.
        """
        now = self._now_ms()
        self._timed = self._timed or columns.timestamps is not None
        if self._timed and columns.timestamps is None:
            # or they would get the base timestamp of an open batch, which may be years ago
            columns = replace(columns, timestamps=np.full(columns.rows, now, np.int64))
        order = None
        if len(places) and int(places.min()) != int(places.max()):
            # 8 or 16 bits are sorted in linear time; stable, for the order of a key's records
            order = np.argsort(_narrow(places), kind="stable")
            columns, places = columns.take(order), places[order]
        frames = measure(columns)
        edges = np.flatnonzero(np.diff(places)) + 1
        groups = [
            (partitions[int(places[a])], int(a), int(b))
            for a, b in zip([0, *edges], [*edges, len(places)], strict=True)
        ]
        for partition, start, end in groups:
            self._check_sizes(frames, partition, start, end, order)
        segments, offset_deltas, timestamp_deltas = self._plan(columns, frames, groups, now)
        encoded = encode(columns, frames, offset_deltas, timestamp_deltas)
        for partition, start, end in groups:
            self._count(columns, frames, partition, start, end, now)
        for partition, start, end, size, full, base in segments:
            if end > start:
                batch = self._open.get(partition)
                if batch is None:
                    batch = self._open[partition] = OpenBatch(base, base)
                records = encoded.records(start, end)
                if not full and size < _VIEW_SHARE * encoded.bytes:
                    records = [b"".join(records)]
                batch.pieces += records
                batch.records += end - start
                batch.size += size
                self._open_bytes += size
                if columns.timestamps is not None:
                    batch.max_timestamp = max(batch.max_timestamp, int(columns.timestamps[start:end].max()))
            if full:
                yield self._seal(partition)
        while self._open_bytes > _OPEN_MOST:
            yield self._seal(max(self._open, key=lambda p: self._open[p].size))

    def finish(self) -> Iterator[SealedBatch]:
        """The batches that are still open."""
        while self._open:
            yield self._seal(next(iter(self._open)))

    # -- private -------------------------------------------------------------------------------------------------

    def _check_sizes(self, frames: Frames, partition: TopicPartition, start: int, end: int, order: Any) -> None:
        limit = self._limits[partition.topic]
        row = start + int(frames.fixed[start:end].argmax())
        body = int(frames.fixed[row]) + _ALONE
        if HEADER_BYTES + len(zig_zag(body)) + body > limit:
            raise TooLarge(row if order is None else int(order[row]), partition, int(frames.content[row]))

    def _plan(
        self, columns: Columns, frames: Frames, groups: list[tuple[TopicPartition, int, int]], now: int
    ) -> tuple[list[tuple[TopicPartition, int, int, int, bool, int]], npt.NDArray[np.int32], Any]:
        """Which rows go into which batch: (partition, start, end, size, full, base timestamp), and the deltas."""
        stamps = columns.timestamps
        cumulated = upper_bounds(frames.fixed, stamps is not None)
        offset_deltas = np.arange(columns.rows, dtype=np.int32)
        timestamp_deltas = None if stamps is None else stamps.copy()
        segments = []
        for partition, start, end in groups:
            limit = min(self._batch_bytes, self._limits[partition.topic]) - HEADER_BYTES
            batch = self._open.get(partition)
            at, records = start, batch.records if batch else 0
            base = None if batch is None else batch.base_timestamp
            ends = cut(cumulated, start, end, batch.size if batch else 0, limit)
            for edge in ends:
                if edge > at:
                    if base is None:
                        base = now if stamps is None else int(stamps[at])
                    offset_deltas[at:edge] += records - at
                    if timestamp_deltas is not None:
                        timestamp_deltas[at:edge] -= base
                size = int(cumulated[edge] - cumulated[at])
                segments.append((partition, at, edge, size, edge != ends[-1], base or 0))
                if edge != ends[-1]:
                    at, records, base = edge, 0, None
        return segments, offset_deltas, timestamp_deltas

    def _count(
        self, columns: Columns, frames: Frames, partition: TopicPartition, start: int, end: int, now: int
    ) -> None:
        found = self._tally.of(partition)
        found.records += end - start
        found.bytes += int(frames.content[start:end].sum())
        found.date(now if columns.timestamps is None else int(columns.timestamps[start:end].min()))
        part = columns.slice(start, end - start)
        lengths = np.stack(
            [frames.key_lengths[start:end], frames.value_lengths[start:end], frames.header_lengths[start:end]], axis=1
        )
        headers = header_section([]) * (end - start) if part.headers is None else data_of(part.headers)
        found.digest.update_columns(
            np.ascontiguousarray(lengths, "<i4"), _content(part.key), _content(part.value), headers
        )

    def _seal(self, partition: TopicPartition) -> SealedBatch:
        batch = self._open.pop(partition)
        self._open_bytes -= batch.size
        sequence, order = self._next.get(partition, (0, 0))
        self._next[partition] = ((sequence + batch.records) % SEQUENCE_MODULUS, order + 1)
        return seal(batch, partition, order, self._state, sequence, self._codec)


def _content(column: pa.BinaryArray | None) -> memoryview | bytes:
    return b"" if column is None else data_of(column)


def _narrow(places: Place) -> npt.NDArray[Any]:
    return places.astype(np.uint8 if int(places.max()) < 256 else np.uint16 if int(places.max()) < 65536 else np.int32)
