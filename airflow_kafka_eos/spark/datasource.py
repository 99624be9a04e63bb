"""The Spark data source ``kafka_eos``: a DataFrame becomes prepared transactions and a manifest.

    spark.dataSource.register(KafkaEosDataSource)
    df.write.format("kafka_eos").options(...).mode("append").save()

The options are in :mod:`.options`. How PySpark 4.2.1 calls what is here (tried, see tests/spark):

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
  messages: hence rule 13. When the driver dies, neither is called.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_kafka_eos import manifest
from airflow_kafka_eos.errors import ConfigurationError, ManifestError, TerminalError, UndecidableError
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.writer import TransactionWriter, WriteTarget
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import Checked, check_cluster
from airflow_kafka_eos.spark.schema import check_schema
from airflow_kafka_eos.spark.spec import SETTINGS_VARIABLE

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

WRITER_NAME = "confluent"


@dataclass
class PreparedPartition(WriterCommitMessage):
    """What a task attempt reports. From here on its transaction is no longer the writer's own (rule 13)."""

    entry: ManifestEntry


class KafkaEosDataSource(DataSource):
    """``format("kafka_eos")``, for writing only."""

    @classmethod
    def name(cls) -> str:
        return "kafka_eos"

    def writer(self, schema: StructType, overwrite: bool) -> KafkaEosWriter:
        """Check everything that can be checked before a task runs.

        :raises ConfigurationError: options, columns, topics or hold time are wrong.
        :raises KafkaEosError: the broker is not reachable, refuses the login, or is too old.
        :raises UndecidableError: another application has claimed the attempt (rule 3).
        """
        if overwrite:
            raise ConfigurationError(
                "kafka_eos cannot overwrite a topic", remedy='Write with .mode("append")'
            )
        options = WriteOptions.parse(self.options)
        check_schema(schema, has_default_topic=options.default_topic is not None)
        settings = options.settings(os.environ.get(SETTINGS_VARIABLE))
        checked = check_cluster(settings, options)
        _check_claim(options)
        return KafkaEosWriter(options, settings, checked)


def _check_claim(options: WriteOptions) -> None:
    store, ref = ManifestStore(options.manifest_dir), options.attempt
    if options.claim is None:
        store.claim(ref, f"a write of its own, {uuid.uuid4().hex}")
    elif (found := store.claimant(ref)) != options.claim:
        raise UndecidableError(
            f"the attempt is claimed by {found or 'nobody'}, not by {options.claim}",
            remedy="Clear prepare: it opens a new attempt",
            load=str(ref.load),
            attempt=ref.attempt,
        )
    if store.is_written(ref):
        raise UndecidableError(
            "this application has written the attempt once already, or given it up",
            remedy="Write one DataFrame per application (union them), or make each a load of its own",
            load=str(ref.load),
            attempt=ref.attempt,
        )


class KafkaEosWriter(DataSourceArrowWriter):
    """Carried to every task attempt and back to the driver, by pickle. Holds the secrets, so no repr of them."""

    def __init__(self, options: WriteOptions, settings: KafkaSettings, checked: Checked) -> None:
        self.options = options
        self.settings = settings
        self.checked = checked

    # -- on executors ----------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PreparedPartition:
        """Prepare one Spark partition; an empty one makes no transaction."""
        context = TaskContext.get()
        if context is None:
            raise TerminalError("kafka_eos writes only inside a Spark task", remedy="Use df.write")
        partition = context.partitionId()
        transactional_id = _transactional_id(self.options.attempt, partition, context.taskAttemptId())
        writer: TransactionWriter | None = None
        try:
            for batch in iterator:
                if batch.num_rows == 0:
                    continue
                if writer is None:
                    writer = self._writer(transactional_id)
                    writer.open()
                writer.write(batch)
            if writer is None:
                return PreparedPartition(ManifestEntry(partition, None, ()))
            transaction, writes = writer.prepare()
            return PreparedPartition(ManifestEntry(partition, transaction, writes))
        except BaseException:
            if writer is not None:
                writer.abort()
            raise
        finally:
            if writer is not None:
                writer.close()

    def _writer(self, transactional_id: TransactionalId) -> TransactionWriter:
        from airflow_kafka_eos.kafka.confluent_writer import ConfluentWriter
        from airflow_kafka_eos.kafka.describing import describe_once

        target = WriteTarget(
            transactional_id=transactional_id,
            topics=self.checked.limits,
            default_topic=self.options.default_topic,
            transaction_timeout_ms=self.options.transaction_timeout_ms,
            deadline_ms=self.options.deadline_ms,
        )
        return ConfluentWriter(
            self.settings, target, lambda _: describe_once(self.settings, transactional_id)
        )

    # -- on the driver ---------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the manifest. Spark has accepted one attempt of every partition.

        :raises ManifestError: a partition has not reported, or a manifest or a tombstone is there already.
        """
        ref = self.options.attempt
        entries = sorted(_entries(messages), key=lambda e: e.spark_partition)
        if [e.spark_partition for e in entries] != list(range(len(messages))):
            raise ManifestError(
                f"of {len(messages)} Spark partitions, these have reported: {[e.spark_partition for e in entries]}",
                remedy="Clear prepare: it opens a new attempt",
                load=str(ref.load),
                attempt=ref.attempt,
            )
        text = manifest.dump(
            Manifest(
                attempt=ref,
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
                writer=WRITER_NAME,
                transaction_timeout_ms=self.options.transaction_timeout_ms,
                topics=self.checked.topics,
                entries=tuple(entries),
            )
        )
        manifest.load(text, ref)  # what decide would refuse must not be reported as prepared
        ManifestStore(self.options.manifest_dir).write(ref, text)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the attempt up: first so that no manifest can follow, then end what was reported (rule 13).

        Never raises: Spark would show its error in place of the one that made the write fail.
        """
        from airflow_kafka_eos.kafka.describing import abort_reported

        ref = self.options.attempt
        try:
            if not ManifestStore(self.options.manifest_dir).give_up(ref, "a task or the manifest failed"):
                _log.warning("%s: writing the manifest was tried, its transactions are left to cleanup", ref)
                return
            reported = [e.transaction for e in _entries(messages) if e.transaction is not None]
            abort_reported(self.settings, ref, reported)
        except Exception as e:
            _log.warning("%s: not all transactions could be aborted (%s), cleanup finds them", ref, e)


def _transactional_id(ref: AttemptRef, partition: int, task_attempt_id: int) -> TransactionalId:
    # taskAttemptId is unique within an application; attemptNumber starts at 0 again in a retried stage (rule 5)
    return TransactionalId(ref.load, ref.ledger_id, ref.attempt, partition, task_attempt_id)


def _entries(messages: Sequence[WriterCommitMessage | None]) -> list[ManifestEntry]:
    return [m.entry for m in messages if isinstance(m, PreparedPartition)]
