"""``df.writeStream.format("kafka_eos")``: a query's batches, each prepared by its tasks and committed by the driver.

    spark.dataSource.register(KafkaEosStreams)
    df.writeStream.format("kafka_eos").queryName("orders").option("topic", "orders")
        .option("checkpointLocation", …).start()

How PySpark 4.2.0 calls what is here (tried, see tests/streams):

- For each batch, behind the checkpoint's file of offsets and before any task, a Python process of the driver makes a
  data source of the query's options, and asks it for ``streamWriter()``. The writer is pickled to the tasks. Spark
  tells it nothing of query and batch: both are read out of the checkpoint, and each task compares them with its own
  properties.
- For ``commit`` or ``abort``, another Python process of the driver unpickles a data source that was made when the
  query was started, and asks that one for ``streamWriter()``, too. So of what was begun it knows what the tasks'
  messages say.
- Both processes are used again for the next batch, and end a minute after the last.
- When ``commit`` raises, ``abort`` is called with the same messages, and the query fails. When a driver dies, neither
  is; the next run asks for the same batch again, unless its file of commits is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamWriter

    _GETS_ARROW = True
except ImportError:  # Spark 4.0: rows; 3.5 has neither, and uses what is in .foreach
    _GETS_ARROW = False
    try:
        from pyspark.sql.datasource import DataSourceStreamWriter as _StreamWriter  # type: ignore[assignment]
    except ImportError:
        _StreamWriter = object  # type: ignore[assignment, misc]

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter, Part, PartReport
from airflow_kafka_eos.spark.datasource import KafkaEosDataSource
from airflow_kafka_eos.spark.no_retries import check_spark_settings
from airflow_kafka_eos.spark.quick_ack import ack_at_once
from airflow_kafka_eos.spark.quick_collect import collect_less
from airflow_kafka_eos.streams.messages import Begun, Message
from airflow_kafka_eos.streams.options import StreamOptions
from airflow_kafka_eos.streams.words import told_to_a_query

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
_ROWS_AT_ONCE = 10_000


class KafkaEosStreams(KafkaEosDataSource):
    """``format("kafka_eos")``, for ``df.write`` and ``df.writeStream``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        #: made for a batch that is to be written, by this process
        self._begins = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._begins = False

    @told_to_a_query()
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """For a batch's tasks, which it begins; or for its end.

        :raises ConfigurationError: options or columns are wrong, or the output mode rewrites.
        :raises KafkaEosError: see :func:`airflow_kafka_eos.protocol.stages.batches.begin_batch` and
            :func:`airflow_kafka_eos.spark.preflight.check_cluster`; nothing was written.
        """
        if overwrite:
            raise ConfigurationError(
                "kafka_eos cannot rewrite what readers have seen, as output mode complete would",
                remedy='Use .outputMode("append")',
            )
        options = StreamOptions.parse(self.options)
        if not self._begins:
            return BatchEnd(options)
        if not _GETS_ARROW and "timestamp" in schema.names:
            raise ConfigurationError(
                "this version of Spark hands a stream's timestamps over without their time zone",
                remedy="Drop the column timestamp, use foreachBatch with exactly_once (docs/streams.md), or Spark 4.1",
            )
        from airflow_kafka_eos.streams.driver import begin

        writer = BatchWriter(*begin(options, schema, os.environ), schema)
        collect_less()
        return writer


class BatchEnd(_StreamWriter):
    """What commits a batch, or gives it up, by its tasks' messages. In a process of the driver."""

    def __init__(self, options: StreamOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[Any]) -> Message:
        raise ConfigurationError(
            "this version of Spark hands a task the writer that was made for the end of a batch",
            remedy="Use foreachBatch with exactly_once (docs/streams.md), and report the version",
        )

    @told_to_a_query()
    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """Decide and commit the batch, or see that it was decided before.

        :raises KafkaEosError: see :func:`airflow_kafka_eos.streams.driver.end`.
        """
        from airflow_kafka_eos.streams.driver import end

        end(self.options, messages, batchId)
        collect_less()

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """Give the batch up, unless it is decided. Never raises: Spark would show its error in place of the first."""
        from airflow_kafka_eos.streams.driver import give_up

        give_up(self.options, batchId)


class BatchWriter(_StreamWriter):
    """Carried to every task of one batch, by pickle. Holds the secrets of the cluster, so no repr of them."""

    def __init__(
        self, begun: Begun, writer: AttemptWriter | None, schema: StructType, *, gets_arrow: bool = _GETS_ARROW
    ) -> None:
        self.begun = begun
        self.writer = writer
        self.schema = schema
        self.gets_arrow = gets_arrow

    @told_to_a_query()
    def write(self, iterator: Iterator[Any]) -> Message:
        """Prepare one Spark partition; of a batch that is decided, count its rows.

        :raises UndecidableError: the task is of another batch, or of another query.
        """
        context = TaskContext.get()
        assert context is not None
        ack_at_once()
        self.begun.batch.check_same(context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID))
        batches = iterator if self.gets_arrow else _record_batches(iterator, self.schema)
        part = Part(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for one in batches:
                rows += one.num_rows
                yield one

        report = None
        if self.writer is None:
            for _ in counted():
                pass
        else:
            report = self.writer.write_part(part, counted(), lambda batch: None)
            if report.entry.transaction is not None:  # else nothing is imported yet
                collect_less()
        return Message(
            self.begun.number,
            rows,
            report,
            is_run_once(context, report),
            self.begun if part.partition == 0 else None,
        )

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        raise ConfigurationError(
            "this version of Spark ends a batch by the writer that was made for its tasks",
            remedy="Use foreachBatch with exactly_once (docs/streams.md), and report the version",
        )

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        pass  # see commit: nothing was decided, and the next batch sweeps it


def is_run_once(context: TaskContext, report: PartReport | None) -> bool:
    """Whether no other run of the task can be there, by Spark's settings and by what this one has met.

    Rule: verified-end-before-reuse.
    """
    if report is None or report.attempt_number or report.skipped_ids:
        return False
    try:
        check_spark_settings(context.getLocalProperty)
    except ConfigurationError:
        return False
    return True


def _record_batches(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as Spark 4.0 hands them over, as record batches."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow = to_arrow_schema(schema)

    def made(taken: list[Any]) -> pa.RecordBatch:
        columns = [pa.array([row[n] for row in taken], field.type) for n, field in enumerate(arrow)]
        return pa.RecordBatch.from_arrays(columns, schema=arrow)

    taken: list[Any] = []
    for row in rows:
        taken.append(row)
        if len(taken) == _ROWS_AT_ONCE:
            yield made(taken)
            taken = []
    if taken:
        yield made(taken)
