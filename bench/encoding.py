"""Encoding alone, on one core, without Spark and without a broker: from Arrow batches to Kafka's record batches."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.cases import BATCH_BYTES, LEVEL
from bench.data import Dataset
from bench.report import Extra

#: Rows of a batch as Spark hands it to Python (``spark.sql.execution.arrow.maxRecordsPerBatch``).
ROWS = 10_000
BATCHES = 50
REPEATS = 5


class NoEncoder(Exception):
    """The package has no encoder, or not where it is looked for."""


def encoding(records: Dataset, partitions: int, say: Callable[[str], None]) -> Extra:
    """Medians of several repetitions over the same batches.

    :raises NoEncoder: see there.
    """
    batches = pq.read_table(records.parquet_files[0]).to_batches(max_chunksize=ROWS)[:BATCHES]
    rows = []
    for what, work in _works(partitions).items():
        seconds = []
        for _ in range(REPEATS + 1):
            begun = time.process_time()
            for batch in batches:
                work(batch)
            seconds.append(time.process_time() - begun)
        one = statistics.median(seconds[1:])  # the first one warms up
        count, size = sum(b.num_rows for b in batches), _bytes(batches)
        rows.append((f"{what}: M records/s per core", f"{count / one / 1e6:.2f}"))
        rows.append((f"{what}: MB/s per core", f"{size / one / 1e6:.0f}"))
        say(f"{what}, {records.name}: {rows[-2][1]} M records/s, {rows[-1][1]} MB/s per core")
    return f"Encoding alone, {records.name} records, batches of {ROWS:,} rows", rows


def _works(partitions: int) -> dict[str, Callable[[pa.RecordBatch], object]]:
    try:
        from airflow_kafka_eos.kafka.producer.arrow.batcher import Batcher
        from airflow_kafka_eos.kafka.producer.arrow.columns import read
        from airflow_kafka_eos.kafka.producer.arrow.encoding import encode, measure
        from airflow_kafka_eos.kafka.producer.arrow.partitioner import place
        from airflow_kafka_eos.kafka.producer.interface import Tally, TopicLimits, WriteTarget
        from airflow_kafka_eos.kafka.records.compression import compressor
        from airflow_kafka_eos.kafka.records.kernel import Kernel, kernel
        from airflow_kafka_eos.load import LoadIdentity
        from airflow_kafka_eos.naming import TransactionalId
        from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition
        from bench.identity import LEDGER, NAMESPACE
    except ImportError as error:
        raise NoEncoder(str(error)) from error

    topic, now = "bench", 1_790_000_000_000
    named = TransactionalId(LoadIdentity(NAMESPACE, "encoding", "x"), LEDGER, 1, 0, 0)
    target = WriteTarget(named, {topic: TopicLimits(partitions, 1_048_588)}, topic, 60_000, now)
    places = [TopicPartition(topic, p) for p in range(partitions)]
    deltas = np.arange(ROWS, dtype=np.int32)

    def records_only(batch: pa.RecordBatch) -> object:
        columns = read(batch, target, now)
        return encode(columns, measure(columns), deltas[: batch.num_rows])

    def whole(codec: str, by: Kernel | None) -> Callable[[pa.RecordBatch], object]:
        level = None if codec == "none" else LEVEL
        batcher = Batcher(
            PreparedTxnState(1, 0), {topic: 1_048_588}, BATCH_BYTES, compressor(codec, level), Tally(), lambda: now,
            by,
        )  # fmt: skip

        def work(batch: pa.RecordBatch) -> object:
            columns = read(batch, target, now)
            _, found = place(batch, {topic: partitions}, topic, "murmur2_random", start=0)
            return sum(sealed.bytes for sealed in batcher.add(columns, found, places))

        return work

    works: dict[str, Callable[[pa.RecordBatch], object]] = {"records section, by numpy and Arrow": records_only}
    for by, name in ((None, "by numpy and Arrow"), (kernel(), "by the kernel")):
        if by is not None or name == "by numpy and Arrow":
            works[f"placed, sorted, encoded, digested, sealed {name}"] = whole("none", by)
            works[f"the same with zstd level {LEVEL} {name}"] = whole("zstd", by)
    return works


def _bytes(batches: list[pa.RecordBatch]) -> int:
    return sum(column.nbytes - 4 * (batch.num_rows + 1) for batch in batches for column in batch.columns)
