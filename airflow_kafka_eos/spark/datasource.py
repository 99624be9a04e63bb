"""The Spark data source ``kafka_eos``: a DataFrame becomes prepared transactions and a manifest.

    spark.dataSource.register(KafkaEosDataSource)
    df.write.format("kafka_eos").options(...).mode("append").save()

The packaged application runs the same writer in its own process where it can (:mod:`.write`): there, too, nothing may
hang on what a call has put into ``self``. The options are in :mod:`.options`.

How PySpark 4.2.0 calls what is here (tried, see tests/spark):

- ``writer()`` runs once per write, in a Python worker process of the driver, before any task. That process has the
  environment of the driver's JVM. The writer is pickled there, and each call below starts from that one pickle: what
  ``write`` or ``commit`` put into ``self`` is gone for the next. So what they must remember is kept in files.
- ``write`` runs in a Python worker of an executor, once per task attempt, for empty partitions too. A DataFrame
  without partitions gets one empty task.
- Spark's commit coordinator is used (``useCommitCoordinator`` keeps its default, true): one attempt per partition is
  accepted. An attempt that is denied, or killed with its worker process, has no say any more: its transaction
  stays open, and cleanup finds it. When the rows before it failed, ``write`` got an EOFError from its iterator or was
  killed, and a cut input was never taken for its end; the JVM fails such a task in any case.
- ``commit(messages)`` and ``abort(messages)`` run in further worker processes of the driver. When a task fails for
  good, ``abort`` gets None for each partition without a message. When ``commit`` raises, ``abort`` is called with all
  messages: hence the rule: writer-ends-only-unreported. When the driver dies, neither is called.

So this module is imported anew four times and more in a write. What not every call needs is imported where it is
needed: kafka-python and pyarrow take 0.3 s together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
except ImportError:  # Spark 3.5: the writer alone is used, by the packaged application
    DataSource = DataSourceArrowWriter = WriterCommitMessage = object  # type: ignore[misc, assignment]

from airflow_kafka_eos.errors import ConfigurationError, TerminalError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter, Part, PartReport, check_claim, identities
from airflow_kafka_eos.spark.no_retries import check_spark_settings
from airflow_kafka_eos.spark.options import Checked, WriteOptions, check_schema
from airflow_kafka_eos.spark.pooled import Snapshot
from airflow_kafka_eos.spark.python_env import check_libraries
from airflow_kafka_eos.spark.quick_ack import ack_at_once
from airflow_kafka_eos.spark.quick_collect import collect_less
from airflow_kafka_eos.transaction import PreparedTransaction

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

    from airflow_kafka_eos.spark.progress import Written


class PreparedPartition(PartReport, WriterCommitMessage):
    """What a task attempt reports."""


class KafkaEosDataSource(DataSource):
    """``format("kafka_eos")``, for writing only."""

    @classmethod
    def name(cls) -> str:
        return "kafka_eos"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaEosWriter:
        """See :func:`make_writer`, which also says what this raises."""
        if overwrite:
            raise ConfigurationError(
                "kafka_eos cannot overwrite a topic", remedy='Write with .mode("append")'
            )
        return make_writer(schema, WriteOptions.parse(self.options))


def make_writer(schema: StructType, options: WriteOptions) -> KafkaEosWriter:
    """The writer of a DataFrame. Everything is checked that can be checked before a task runs.

    :raises ConfigurationError: options, columns, topics or hold time are wrong.
    :raises KafkaEosError: the broker is not reachable, refuses the login, or is too old; or two-phase commit is
        required and not granted.
    :raises UndecidableError: another application has claimed the attempt (rule: one-application-per-attempt).
    """
    from airflow_kafka_eos.spark.preflight import check_cluster

    check_schema(schema, has_default_topic=options.default_topic is not None)
    settings = options.settings(os.environ)
    checked = check_cluster(settings, options)
    check_claim(options)
    if options.scope is TransactionScope.LOAD:
        from airflow_kafka_eos.spark.scope import check_arrangement

        options = replace(options, tasks=check_arrangement(schema, checked.partitions, options) or options.tasks)
    return KafkaEosWriter(options, settings, checked, *identities(options, settings, checked))


class KafkaEosWriter(AttemptWriter, DataSourceArrowWriter):
    """Carried to every task attempt and back to the driver, by pickle. Holds the secrets, so no repr of them."""

    report = PreparedPartition

    def __init__(
        self,
        options: WriteOptions,
        settings: KafkaSettings,
        checked: Checked,
        shared: PreparedTransaction | None = None,
        at_lease: Snapshot | None = None,
    ) -> None:
        super().__init__(options, settings, checked, shared, at_lease)
        #: to be told how much a task has written, once it has (:mod:`.progress`)
        self.written: Accumulator[Written] | None = None

    # -- on executors; commit and abort are called on the driver -----------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PreparedPartition:
        """Prepare one Spark partition."""
        context = TaskContext.get()
        if context is None:
            raise TerminalError("kafka_eos writes only inside a Spark task", remedy="Use df.write")
        ack_at_once()
        check_libraries(self.checked.writer)
        if (tokens := self.settings.token_source()) is not None:
            tokens.current()  # before a row is read, too: this host may lack what the driver's has
        part = Part(context.partitionId(), context.attemptNumber(), context.taskAttemptId())
        report: PreparedPartition = self.write_part(part, iterator, self._check_of_rows(context))
        if self.written is not None and self.options.attempt.writes(part.partition):
            from airflow_kafka_eos.spark.progress import Written

            writes = report.entry.writes
            self.written.add(Written(1, sum(w.records for w in writes), sum(w.bytes for w in writes)))
        if report.entry.transaction is not None:  # else nothing is imported yet
            collect_less()
        return report

    def _check_of_rows(self, context: TaskContext) -> Callable[[pa.RecordBatch], None]:
        """What each batch is checked for before it is written: in scope ``load``, that it is this task's own."""
        if self.shared is None:
            return lambda batch: None
        from airflow_kafka_eos.spark.scope import Owners, check_own_rows

        check_spark_settings(context.getLocalProperty)
        owners = Owners.of(self.checked.partitions, self.options.tasks)
        task = context.partitionId()
        return lambda batch: check_own_rows(batch, task, owners, self.options)
