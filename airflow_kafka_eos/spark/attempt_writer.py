"""The writing of one attempt, whoever runs it: Spark's tasks (:mod:`.datasource`), or Airflow's worker itself.

One claim, its identities, a transaction for each part of the rows, and the manifest, or a tombstone in its place. A
part is called a Spark partition, whoever has made it: that is its name in transactional ids and manifests. Nothing here
needs pyspark, and what not every call needs is imported where it is needed: kafka-python and pyarrow take 0.3 s
together.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_kafka_eos import manifest
from airflow_kafka_eos.errors import ManifestError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.interface import TransactionWriter
from airflow_kafka_eos.kafka.records.digest import ALGORITHM
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.naming import AnyId, IdRole
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.no_retries import check_first_attempt
from airflow_kafka_eos.spark.options import Checked, WriteOptions
from airflow_kafka_eos.spark.pooled import Snapshot, choose, snapshot
from airflow_kafka_eos.transaction import PreparedTransaction

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_eos.kafka.client.wire import Wire

_log = logging.getLogger(__name__)


@dataclass
class PartReport:
    """What the writing of a part reports. From here on its transaction is no longer the writer's own.

    Rule: writer-ends-only-unreported.

    ``attempt_number`` is Spark's: 0 for a task's first run. ``skipped_ids``: another task attempt has initialised the
    pooled id that a first run takes.
    """

    entry: ManifestEntry
    attempt_number: int = 0
    skipped_ids: bool = False


@dataclass(frozen=True)
class Part:
    """A part of the rows, and which run of its writing this is.

    :param partition: counted from 0.
    :param attempt_number: 0 for the first run, as Spark counts.
    :param run_id: different for each run of any part within an application (Spark's ``taskAttemptId``).
    """

    partition: int
    attempt_number: int
    run_id: int


def identities(
    options: WriteOptions, settings: KafkaSettings, checked: Checked, store: ManifestStore | None = None
) -> tuple[PreparedTransaction | None, Snapshot]:
    """Scope ``load``: its one transaction. Else: the ids of the attempt's slot, as they are before any part is written.

    Behind the claim: initialising ends whatever another application has open under that id, and the slot is this
    application's alone from there on.

    :param store: opened already, with a login of its own; None: that of the options.
    """
    if options.scope is TransactionScope.LOAD:
        return _shared_transaction(options, settings, checked, store or ManifestStore(options.manifest_dir)), {}
    return None, snapshot(settings, options.attempt)


def _shared_transaction(
    options: WriteOptions, settings: KafkaSettings, checked: Checked, store: ManifestStore
) -> PreparedTransaction:
    """The one transaction of scope ``load``: begun with the first record that a task sends.

    Rules: recorded-identity, writers-have-a-deadline.
    """
    from airflow_kafka_eos.kafka.producer.writers import initialise

    ref = options.attempt
    name = ref.common_id(IdRole.LOAD)
    state = store.identity(
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


def check_claim(options: WriteOptions, store: ManifestStore | None = None) -> None:
    """Whether this application has the attempt's claim; a write of its own takes it.

    :raises UndecidableError: another application has claimed the attempt, or this one has written it (rule:
        one-application-per-attempt).
    """
    store, ref = store or ManifestStore(options.manifest_dir), options.attempt
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


class AttemptWriter:
    """Writes the parts of an attempt, and its manifest. Can be pickled. Holds the secrets, so no repr of them."""

    #: what :meth:`write_part` makes
    report: Callable[..., PartReport] = PartReport
    #: see :class:`~airflow_kafka_eos.kafka.producer.interface.WriteTarget`
    look: Callable[[], object] | None = None

    def __init__(
        self,
        options: WriteOptions,
        settings: KafkaSettings,
        checked: Checked,
        shared: PreparedTransaction | None = None,
        at_lease: Snapshot | None = None,
        store: ManifestStore | None = None,
        *,
        keeps_wire: bool = False,
    ) -> None:
        self.options = options
        self.settings = settings
        self.checked = checked
        #: scope ``load``: the transaction that all parts are written into
        self.shared = shared
        #: the ids of the slot, if there is one, as they were before any part
        self.at_lease: Snapshot = at_lease or {}
        self._store = store
        #: see :func:`~airflow_kafka_eos.kafka.producer.writers.make_writer`
        self.keeps_wire = keeps_wire

    @property
    def store(self) -> ManifestStore:
        """Of the manifest: the one that was given, or that of the options."""
        return self._store or ManifestStore(self.options.manifest_dir)

    def write_part(
        self, part: Part, batches: Iterator[pa.RecordBatch], check: Callable[[pa.RecordBatch], None]
    ) -> Any:
        """Prepare one part; an empty one makes no transaction, nor does one that is not to be repaired.

        :param check: of each batch, before it is written.
        :returns: a ``report``.
        """
        partition, number = part.partition, part.attempt_number
        if not self.options.attempt.writes(partition):
            for _ in batches:
                pass  # to its end: a cut input fails the part
            return self.report(ManifestEntry(partition, None, ()), number)
        check_first_attempt(number, self.options, partition)
        first_choice = True
        writer: TransactionWriter | None = None
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                check(batch)
                if writer is None:
                    writer, first_choice = self._writer_of(part)
                    writer.open()
                writer.write(batch)
            if writer is None:
                return self.report(ManifestEntry(partition, None, ()), number)
            transaction, writes = writer.prepare()
            return self.report(ManifestEntry(partition, transaction, writes), number, not first_choice)
        except BaseException:
            if writer is not None:
                writer.abort()
            raise
        finally:
            if writer is not None:
                writer.close()

    def _writer_of(self, part: Part) -> tuple[TransactionWriter, bool]:
        """A writer that is not open yet, and whether its id is the one that a part's first run takes."""
        ref = self.options.attempt
        if self.shared is not None:
            return self._writer(ref.common_id(IdRole.LOAD)), True
        if ref.slot is None:
            # run_id is unique within an application; attempt_number starts at 0 again in a stage that Spark runs again
            # (rule: id-per-task-attempt)
            return self._writer(ref.task_id(part.partition, part.run_id)), True
        from airflow_kafka_eos.kafka.producer.writers import describe, wire_before

        wire = wire_before(self.checked.writer.value, self.settings, keeps_wire=self.keeps_wire)
        try:
            transactional_id, is_first = choose(
                ref, part.partition, part.attempt_number, self.at_lease, lambda name: describe(wire, name)
            )
            return self._writer(transactional_id, wire), is_first
        except BaseException:
            wire.close()
            raise

    def _writer(self, transactional_id: AnyId, wire: Wire | None = None) -> TransactionWriter:
        from airflow_kafka_eos.kafka.producer.writers import make_writer

        target = self.options.target(
            transactional_id,
            self.checked.limits,
            two_phase_commit=self.checked.two_phase_commit,
            shared=None if self.shared is None else self.shared.state,
            look=self.look,
        )
        return make_writer(self.checked.writer.value, self.settings, target, wire, keeps_wire=self.keeps_wire)

    def commit(self, messages: Sequence[Any]) -> None:
        """Write the manifest. Of every part one report was accepted.

        :raises ManifestError: a manifest or a tombstone is there already; and see :meth:`manifest_of`, for other errors
            too.
        """
        self.store.write(self.options.attempt, manifest.dump(self.manifest_of(messages)))

    def manifest_of(self, messages: Sequence[Any]) -> Manifest:
        """What all parts have written together. Of every part one report was accepted. No I/O.

        :raises ManifestError: a partition has not reported.
        :raises UndecidableError: scope ``load``, and a task has been run a second time (rule: scope-load-writes-once).
        """
        ref = self.options.attempt
        for message in messages:
            if isinstance(message, PartReport):
                check_first_attempt(message.attempt_number, self.options, message.entry.spark_partition)
        entries = sorted(_entries(messages), key=lambda e: e.spark_partition)
        if [e.spark_partition for e in entries] != list(range(len(messages))):
            raise ManifestError(
                f"of {len(messages)} Spark partitions, these have reported: {[e.spark_partition for e in entries]}",
                remedy="Clear prepare: it opens a new attempt",
                **ref.ids,
            )
        reported = [m for m in messages if isinstance(m, PartReport)]
        made = Manifest(
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
        return manifest.load(manifest.dump(made), ref)  # what decide would refuse must not be reported as prepared

    def abort(self, messages: Sequence[Any]) -> None:
        """Give the attempt up: first so that no manifest can follow, then end what was reported.

        Rule: writer-ends-only-unreported.

        Never raises: Spark would show its error in place of the one that made the write fail.
        """
        from airflow_kafka_eos.kafka.producer.writers import abort_reported

        ref = self.options.attempt
        try:
            if not self.store.give_up(ref, "a task or the manifest failed"):
                _log.warning("%s: writing the manifest was tried, its transactions are left to cleanup", ref)
                return
            # in scope load it is known whether or not a task has reported, and has a part of all that have not
            reported = {e.transaction for e in _entries(messages) if e.transaction is not None}
            abort_reported(self.settings, ref, reported if self.shared is None else {self.shared})
        except Exception as e:
            _log.warning("%s: not all transactions could be aborted (%s), cleanup finds them", ref, e)


def _entries(messages: Sequence[Any]) -> list[ManifestEntry]:
    return [m.entry for m in messages if isinstance(m, PartReport)]
