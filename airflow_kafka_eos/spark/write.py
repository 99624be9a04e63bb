"""The packaged application's write: the data source's, less the Python processes that Spark starts for one.

Spark 4.2 finds, plans, commits and aborts a write to a Python data source in processes of their own on the driver: a
core's second per write (bench/AIRFLOW.md). Between them it runs a mapInArrow over the tasks, and that is what is left
here, where nothing but time hangs on it (docs/adr/0020). Writer and manifest are those of :mod:`.datasource`.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.accumulators import AccumulatorParam

from airflow_kafka_eos.errors import ConfigurationError, ManifestError
from airflow_kafka_eos.manifest import AttemptRef, ManifestEntry
from airflow_kafka_eos.spark.attempt_writer import PartReport
from airflow_kafka_eos.spark.datasource import (
    KafkaEosDataSource,
    KafkaEosWriter,
    PreparedPartition,
    make_writer,
)
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.versions import BATCHES_BY_BYTES, is_at_least

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_kafka_eos.spark.progress import Written

#: Bounded by bytes: wide rows fit into memory, and of narrow ones many travel at a time. Spark's own 10,000 rows are
#: 1 GB of rows of 100 KB. Four to eight MB were the fastest for rows of 140 bytes and of 1 KiB (docs/benchmarks.md).
ARROW_BATCHES = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}
#: Bytes of a pickled writer, secrets and all. What is larger than a megabyte Spark hands to executors by way of files
#: (spark.broadcast.UDFCompressionThreshold): the writer of a slot with thousands of ids, for one.
_IN_MEMORY = 500_000
_THRESHOLD = "spark.broadcast.UDFCompressionThreshold"
_ADAPTIVE = "spark.sql.adaptive.enabled"


def arrow_batches() -> dict[str, str]:
    """What the application sets. A Spark that cannot bound batches by bytes keeps its own number of rows."""
    return ARROW_BATCHES if is_at_least(BATCHES_BY_BYTES) else {}


class _Reports(AccumulatorParam[list[PreparedPartition]]):
    """What accepted tasks report, beside their results, for the driver to have when the write fails as a whole."""

    def zero(self, value: list[PreparedPartition]) -> list[PreparedPartition]:
        return []

    def addInPlace(self, value1: list[PreparedPartition], value2: list[PreparedPartition]) -> list[PreparedPartition]:
        value1.extend(value2)
        return value1


def write(frame: DataFrame, options: WriteOptions, written: Accumulator[Written] | None = None) -> None:
    """``frame.write.format("kafka_eos").options(…).mode("append").save()``, in fewer processes where it can be.

    Of each Spark partition one task attempt counts, the one whose result Spark takes, as with its commit coordinator;
    an attempt whose result it does not take has no say any more, and cleanup finds its transaction.

    Spark 3.5 has no data sources in Python: there it is always a mapInArrow.

    :param options: with ``load.claim``.
    :param written: is told by each accepted task what it has written.
    :raises KafkaEosError: what :class:`KafkaEosDataSource` and its writer raise.
    :raises ConfigurationError: Spark 3.5, and it would write the settings of the connection into files.
    """
    if not hasattr(frame.sparkSession, "dataSource"):
        _write_without_data_source(frame, options, written)
        return
    if _is_plain(frame):
        writer = make_writer(frame.schema, options)
        writer.written = written
        if _pickled(writer) <= _IN_MEMORY:
            _map(frame, writer)
            return
    frame.sparkSession.dataSource.register(_counting(written))
    frame.write.format(KafkaEosDataSource.name()).options(**options.to_texts()).mode("append").save()


def _counting(written: Accumulator[Written] | None) -> type[KafkaEosDataSource]:
    """The data source with an accumulator: Spark makes and calls its writer in processes of their own, and pickles a
    class that is made here with what it refers to."""

    class Counting(KafkaEosDataSource):
        def writer(self, schema: StructType, overwrite: bool) -> KafkaEosWriter:
            made = super().writer(schema, overwrite)
            made.written = written
            return made

    return Counting


def _is_plain(frame: DataFrame) -> bool:
    """Whether a mapInArrow over the frame is as good as a write of it. What cannot be told counts as no."""
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    try:
        # mapInArrow asks for it, and has no use for it
        require_minimum_pandas_version()
        if frame.sparkSession.sparkContext.getConf().contains(_THRESHOLD):
            return False
        plan = str(frame._jdf.queryExecution().analyzed().toString())
    except Exception:
        return False
    # adaptive execution keeps what the author has arranged at the root of a plan, and a write's plan has it there;
    # below a mapInArrow it may be optimised away, and the rows of one key get into several tasks
    return not is_arranged(plan)


def _pickled(writer: KafkaEosWriter) -> int:
    return len(cloudpickle.dumps(writer))  # type: ignore[no-untyped-call]


def _write_without_data_source(
    frame: DataFrame, options: WriteOptions, written: Accumulator[Written] | None
) -> None:
    if frame.sparkSession.sparkContext.getConf().contains(_THRESHOLD):
        raise ConfigurationError(
            f"{_THRESHOLD} is set: Spark before 4.0 could hand the writer, logins and all, to executors in files",
            remedy="Leave it as it is by default, or use Spark 4.0",
        )
    writer = make_writer(frame.schema, options)
    writer.written = written
    if (size := _pickled(writer)) > _IN_MEMORY:
        raise ConfigurationError(
            f"the writer has {size:,} bytes, and Spark before 4.0 would hand it to executors in files, logins and all",
            remedy="Use transaction_naming=incrementing, whose writer has no list of ids, or Spark 4.0",
        )
    with _as_arranged(frame):
        _map(frame, writer)


@contextmanager
def _as_arranged(frame: DataFrame) -> Iterator[None]:
    """Adaptive execution off where the author has arranged the rows: below a mapInArrow it would arrange them anew."""
    plan = str(frame._jdf.queryExecution().analyzed().toString())
    if not is_arranged(plan):
        yield
        return
    settings = frame.sparkSession.conf
    before = str(settings.get(_ADAPTIVE))
    settings.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        settings.set(_ADAPTIVE, before)


def is_arranged(plan: str) -> bool:
    """Whether an author has said how rows are dealt out to tasks, by the text of the analysed plan."""
    return "Repartition" in plan or "Rebalance" in plan


def _map(frame: DataFrame, writer: KafkaEosWriter) -> None:
    reports = frame.sparkSession.sparkContext.accumulator([], _Reports())

    # its name is what Spark's UI and plans show
    def kafka_eos(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from airflow_kafka_eos.kafka.producer.arrow.binary import single

        report = writer.write(batches)
        entry = ManifestEntry(report.entry.spark_partition, report.entry.transaction, ())
        reports.add([PreparedPartition(entry)])
        yield pa.RecordBatch.from_arrays([single(pickle.dumps(report))], ["report"])

    try:
        taken = [pickle.loads(row.report) for row in frame.mapInArrow(kafka_eos, "report binary").collect()]
        check_complete(reports.value, taken, writer.options.attempt)
        # a DataFrame without partitions has no task: the data source gets an empty one
        writer.commit(taken or [PreparedPartition(ManifestEntry(0, None, ()))])
    except BaseException:
        writer.abort(reports.value)
        raise


def check_complete(
    reported: Collection[PartReport], taken: Collection[PartReport], ref: AttemptRef
) -> None:
    """Spark's two ways of handing over what its tasks say must agree: no manifest may lack a partition. No I/O.

    :param reported: by accumulator.
    :param taken: by result.
    :raises ManifestError: a partition that was written is not among the results.
    """
    found = {(p.entry.spark_partition, p.entry.transaction) for p in taken}
    missing = sorted(
        p.entry.spark_partition
        for p in reported
        if (p.entry.spark_partition, p.entry.transaction) not in found
    )
    if missing:
        raise ManifestError(
            f"Spark partitions {missing} were written, and Spark's result of the write lacks them",
            remedy="Clear prepare: it opens a new attempt; look for a plugin that changes Spark's plans",
            **ref.ids,
        )
