"""Rows in, sealed record batches out: sorted by partition, encoded, cut to size. No I/O.

Rows of one partition are cut so that no batch exceeds its limit. What stands in a batch's records section is made by
:mod:`.kernel_rows` where it is there, and by :mod:`.encoding` where it is not: the very same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_kafka_eos.kafka.producer.arrow.encoding import (
    FRAME_MOST,
    FRAME_MOST_TIMED,
    Columns,
    GatheredRows,
    Rows,
    Segment,
)
from airflow_kafka_eos.kafka.producer.arrow.kernel_rows import KernelRows
from airflow_kafka_eos.kafka.producer.interface import Tally
from airflow_kafka_eos.kafka.records.batch import HEADER_BYTES, Compressor, OpenBatch, SealedBatch, seal
from airflow_kafka_eos.kafka.records.kernel import Kernel
from airflow_kafka_eos.kafka.records.varint import zig_zag
from airflow_kafka_eos.transaction import SEQUENCE_MODULUS, PreparedTxnState, TopicPartition

#: Bytes of a lone record's timestamp delta and offset delta.
_ALONE = 1 + 1
#: Open batches of all partitions together. With many partitions the largest are sealed before they are full.
_OPEN_MOST = 32 * 1024 * 1024

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
    :param codec: see :func:`~airflow_kafka_eos.kafka.records.compression.compressor`.
    :param tally: counts and digests what passes through.
    :param kernel: encodes; None: numpy and Arrow do it.
    """

    def __init__(
        self,
        state: PreparedTxnState,
        limits: Mapping[str, int],
        batch_bytes: int,
        codec: tuple[int, Compressor | None],
        tally: Tally,
        now_ms: Callable[[], int],
        kernel: Kernel | None,
    ) -> None:
        self._kernel = kernel
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
            places = places[order]
        rows: Rows = GatheredRows(columns, order) if self._kernel is None else KernelRows(self._kernel, columns, order)
        edges = np.flatnonzero(np.diff(places)) + 1
        groups = [
            (partitions[int(places[a])], int(a), int(b))
            for a, b in zip([0, *edges], [*edges, len(places)], strict=True)
        ]
        for partition, start, end in groups:
            self._check_sizes(rows, partition, start, end, order)
        planned = self._plan(rows, groups, now)
        runs = rows.encode([s for _, s in planned if s.end > s.start])
        for partition, s in planned:
            if s.end > s.start:
                run = next(runs)
                found = self._tally.of(partition)
                found.records += s.end - s.start
                found.bytes += run.content
                found.digest.update_columns(run.lengths, run.keys, run.values, run.headers)
                batch = self._open.get(partition)
                if batch is None:
                    batch = self._open[partition] = OpenBatch(s.base_timestamp, s.base_timestamp)
                batch.pieces += run.pieces
                batch.records += s.end - s.start
                batch.size += s.size
                self._open_bytes += s.size
                if rows.timestamps is None:
                    found.date(now)
                else:
                    stamps = rows.timestamps[s.start : s.end]
                    found.date(int(stamps.min()))
                    batch.max_timestamp = max(batch.max_timestamp, int(stamps.max()))
            if s.full:
                yield self._seal(partition)
        while self._open_bytes > _OPEN_MOST:
            yield self._seal(max(self._open, key=lambda p: self._open[p].size))

    def finish(self) -> Iterator[SealedBatch]:
        """The batches that are still open."""
        while self._open:
            yield self._seal(next(iter(self._open)))

    # -- private -------------------------------------------------------------------------------------------------

    def _check_sizes(self, rows: Rows, partition: TopicPartition, start: int, end: int, order: Any) -> None:
        limit = self._limits[partition.topic]
        row = start + int(rows.fixed[start:end].argmax())
        body = int(rows.fixed[row]) + _ALONE
        if HEADER_BYTES + len(zig_zag(body)) + body > limit:
            raise TooLarge(row if order is None else int(order[row]), partition, rows.content_of(row))

    def _plan(
        self, rows: Rows, groups: list[tuple[TopicPartition, int, int]], now: int
    ) -> list[tuple[TopicPartition, Segment]]:
        """Which rows go into which batch. A segment without rows says that the open batch is full."""
        stamps = rows.timestamps
        cumulated = upper_bounds(rows.fixed, stamps is not None)
        planned = []
        for partition, start, end in groups:
            limit = min(self._batch_bytes, self._limits[partition.topic]) - HEADER_BYTES
            batch = self._open.get(partition)
            at, records = start, batch.records if batch else 0
            base = None if batch is None else batch.base_timestamp
            ends = cut(cumulated, start, end, batch.size if batch else 0, limit)
            for edge in ends:
                if base is None:
                    base = now if stamps is None else int(stamps[at])
                size, full = int(cumulated[edge] - cumulated[at]), edge != ends[-1]
                planned.append((partition, Segment(at, edge, size, records, base, full)))
                if full:
                    at, records, base = edge, 0, None
        return planned

    def _seal(self, partition: TopicPartition) -> SealedBatch:
        batch = self._open.pop(partition)
        self._open_bytes -= batch.size
        sequence, order = self._next.get(partition, (0, 0))
        self._next[partition] = ((sequence + batch.records) % SEQUENCE_MODULUS, order + 1)
        return seal(batch, partition, order, self._state, sequence, self._codec)


def _narrow(places: Place) -> npt.NDArray[Any]:
    return places.astype(np.uint8 if int(places.max()) < 256 else np.uint16 if int(places.max()) < 65536 else np.int32)


# -- where batches end -----------------------------------------------------------------------------------------------


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


