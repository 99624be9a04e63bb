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

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_kafka_eos import manifest
from airflow_kafka_eos.errors import ConfigurationError, ManifestError, TerminalError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.interface import TransactionWriter
from airflow_kafka_eos.kafka.records.digest import ALGORITHM
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.naming import AnyId, IdRole
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.no_retries import check_first_attempt, check_spark_settings
from airflow_kafka_eos.spark.options import Checked, WriteOptions, check_schema
from airflow_kafka_eos.spark.pooled import Snapshot, choose, snapshot
from airflow_kafka_eos.spark.python_env import check_libraries
from airflow_kafka_eos.transaction import PreparedTransaction

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

    from airflow_kafka_eos.spark.progress import Written

_log = logging.getLogger(__name__)


@dataclass
class PreparedPartition(WriterCommitMessage):
    """What a task attempt reports. From here on its transaction is no longer the writer's own.

    Rule: writer-ends-only-unreported.

    ``attempt_number`` is Spark's: 0 for a task's first run. ``skipped_ids``: another task attempt has initialised the
    pooled id that a first run takes.
    """

    entry: ManifestEntry
    attempt_number: int = 0
    skipped_ids: bool = False


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
    _check_claim(options)
    shared = None
    if options.scope is TransactionScope.LOAD:
        from airflow_kafka_eos.spark.scope import check_arrangement

        options = replace(options, tasks=check_arrangement(schema, checked.partitions, options) or options.tasks)
        # behind the claim: initialising ends whatever another application has open under that id
        shared = _shared_transaction(options, settings, checked)
    # behind the claim, for the slot is this application's alone from there on; before any task
    at_lease = snapshot(settings, options.attempt) if shared is None else {}
    return KafkaEosWriter(options, settings, checked, shared, at_lease)


def _shared_transaction(
    options: WriteOptions, settings: KafkaSettings, checked: Checked
) -> PreparedTransaction:
    """The one transaction of scope ``load``: begun with the first record that a task sends.

    Rules: recorded-identity, writers-have-a-deadline.
    """
    from airflow_kafka_eos.kafka.producer.writers import initialise

    ref = options.attempt
    name = ref.common_id(IdRole.LOAD)
    state = ManifestStore(options.manifest_dir).identity(
        ref,
        lambda: initialise(
            settings,
            name,
            options.transaction_timeout_ms,
            two_phase_commit=checked.two_phase_commit,
            deadline_ms=options.deadline_ms,
        ),
    )
    return PreparedTransaction(str(name), state)


def _check_claim(options: WriteOptions) -> None:
    store, ref = ManifestStore(options.manifest_dir), options.attempt
    if options.claim is None:
        store.claim(ref, f"a write of its own, {uuid.uuid4().hex}")
    elif (found := store.claimant(ref)) != options.claim:
        raise UndecidableError(
            f"the attempt is claimed by {found or 'nobody'}, not by {options.claim}",
            remedy="Clear prepare: it opens a new attempt",
            **ref.ids,
        )
    if store.is_written(ref):
        raise UndecidableError(
            "this application has written the attempt once already, or given it up",
            remedy="Write one DataFrame per application (union them), or make each a load of its own",
            **ref.ids,
        )


class KafkaEosWriter(DataSourceArrowWriter):
    """Carried to every task attempt and back to the driver, by pickle. Holds the secrets, so no repr of them."""

    def __init__(
        self,
        options: WriteOptions,
        settings: KafkaSettings,
        checked: Checked,
        shared: PreparedTransaction | None = None,
        at_lease: Snapshot | None = None,
    ) -> None:
        self.options = options
        self.settings = settings
        self.checked = checked
        #: scope ``load``: the transaction that all tasks write into
        self.shared = shared
        #: the ids of the slot, if there is one, as they were before any task
        self.at_lease: Snapshot = at_lease or {}
        #: to be told how much a task has written, once it has (:mod:`.progress`)
        self.written: Accumulator[Written] | None = None

    # -- on executors ----------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PreparedPartition:
        """Prepare one Spark partition; an empty one makes no transaction, nor does one that is not to be repaired."""
        context = TaskContext.get()
        if context is None:
            raise TerminalError("kafka_eos writes only inside a Spark task", remedy="Use df.write")
        check_libraries(self.checked.writer)
        partition, number = context.partitionId(), context.attemptNumber()
        if not self.options.attempt.writes(partition):
            for _ in iterator:
                pass  # to its end: a cut input fails the task
            return PreparedPartition(ManifestEntry(partition, None, ()), number)
        check = self._check_of_rows(context)
        check_first_attempt(number, self.options, partition)
        first_choice = True
        writer: TransactionWriter | None = None
        try:
            for batch in iterator:
                if batch.num_rows == 0:
                    continue
                check(batch)
                if writer is None:
                    transactional_id, first_choice = self._transactional_id(context)
                    writer = self._writer(transactional_id)
                    writer.open()
                writer.write(batch)
            if writer is None:
                self._tell(0, 0)
                return PreparedPartition(ManifestEntry(partition, None, ()), number)
            transaction, writes = writer.prepare()
            self._tell(sum(w.records for w in writes), sum(w.bytes for w in writes))
            return PreparedPartition(ManifestEntry(partition, transaction, writes), number, not first_choice)
        except BaseException:
            if writer is not None:
                writer.abort()
            raise
        finally:
            if writer is not None:
                writer.close()

    def _tell(self, records: int, size: int) -> None:
        if self.written is not None:
            from airflow_kafka_eos.spark.progress import Written

            self.written.add(Written(1, records, size))

    def _check_of_rows(self, context: TaskContext) -> Callable[[pa.RecordBatch], None]:
        """What each batch is checked for before it is written: in scope ``load``, that it is this task's own."""
        if self.shared is None:
            return lambda batch: None
        from airflow_kafka_eos.spark.scope import Owners, check_own_rows

        check_spark_settings(context.getLocalProperty)
        owners = Owners.of(self.checked.partitions, self.options.tasks)
        task = context.partitionId()
        return lambda batch: check_own_rows(batch, task, owners, self.options)

    def _transactional_id(self, context: TaskContext) -> tuple[AnyId, bool]:
        """The id to write with, and whether it is the one that a task's first run takes."""
        ref, partition = self.options.attempt, context.partitionId()
        if self.shared is not None:
            return ref.common_id(IdRole.LOAD), True
        if ref.slot is None:
            # taskAttemptId is unique within an application; attemptNumber starts at 0 again in a retried stage
            # (rule: id-per-task-attempt)
            return ref.task_id(partition, context.taskAttemptId()), True
        from airflow_kafka_eos.kafka.producer.writers import describe_once

        return choose(
            ref,
            partition,
            context.attemptNumber(),
            self.at_lease,
            lambda name: describe_once(self.settings, name),
        )

    def _writer(self, transactional_id: AnyId) -> TransactionWriter:
        from airflow_kafka_eos.kafka.producer.writers import make_writer

        target = self.options.target(
            transactional_id,
            self.checked.limits,
            two_phase_commit=self.checked.two_phase_commit,
            shared=None if self.shared is None else self.shared.state,
        )
        return make_writer(self.checked.writer.value, self.settings, target)

    # -- on the driver ---------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Write the manifest. Spark has accepted one attempt of every partition.

        :raises ManifestError: a partition has not reported, or a manifest or a tombstone is there already.
        :raises UndecidableError: scope ``load``, and a task has been run a second time (rule: scope-load-writes-once).
        """
        ref = self.options.attempt
        for message in messages:
            if isinstance(message, PreparedPartition):
                check_first_attempt(message.attempt_number, self.options, message.entry.spark_partition)
        entries = sorted(_entries(messages), key=lambda e: e.spark_partition)
        if [e.spark_partition for e in entries] != list(range(len(messages))):
            raise ManifestError(
                f"of {len(messages)} Spark partitions, these have reported: {[e.spark_partition for e in entries]}",
                remedy="Clear prepare: it opens a new attempt",
                **ref.ids,
            )
        reported = [m for m in messages if isinstance(m, PreparedPartition)]
        text = manifest.dump(
            Manifest(
                attempt=ref,
                created_at=datetime.now(UTC).isoformat(timespec="seconds"),
                writer=self.checked.writer.value,
                scope=self.options.scope,
                two_phase_commit=self.checked.two_phase_commit,
                transaction_timeout_ms=self.checked.timeout_ms,
                digest_algorithm=ALGORITHM,
                topics=self.checked.topics,
                entries=tuple(entries),
                ran_again=any(m.attempt_number > 0 or m.skipped_ids for m in reported),
            )
        )
        manifest.load(text, ref)  # what decide would refuse must not be reported as prepared
        ManifestStore(self.options.manifest_dir).write(ref, text)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the attempt up: first so that no manifest can follow, then end what was reported.

        Rule: writer-ends-only-unreported.

        Never raises: Spark would show its error in place of the one that made the write fail.
        """
        from airflow_kafka_eos.kafka.producer.writers import abort_reported

        ref = self.options.attempt
        try:
            if not ManifestStore(self.options.manifest_dir).give_up(ref, "a task or the manifest failed"):
                _log.warning("%s: writing the manifest was tried, its transactions are left to cleanup", ref)
                return
            # in scope load it is known whether or not a task has reported, and has a part of all that have not
            reported = {e.transaction for e in _entries(messages) if e.transaction is not None}
            abort_reported(self.settings, ref, reported if self.shared is None else {self.shared})
        except Exception as e:
            _log.warning("%s: not all transactions could be aborted (%s), cleanup finds them", ref, e)


def _entries(messages: Sequence[WriterCommitMessage | None]) -> list[ManifestEntry]:
    return [m.entry for m in messages if isinstance(m, PreparedPartition)]
