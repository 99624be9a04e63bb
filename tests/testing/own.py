"""A prepare of somebody's own, right or with one fault: ``python -m tests.testing.own FAULT SPEC``.

It uses the package's writers and none of its engines, as a sink for another system would.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer

from airflow_kafka_eos import manifest, position
from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.interface import TransactionWriter
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.kafka.records.digest import ALGORITHM
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import Checked, WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.spark.spec import ApplicationSpec
from airflow_kafka_eos.testing.rows import numbered
from airflow_kafka_eos.transaction import PreparedTransaction

#: Each with the clause that it breaks.
FAULTS = {
    "claims-nothing": "one-claim",
    "writes-plainly": "manifest-is-true",
    "commits-by-itself": "manifest-is-true",
    "loses-the-last-row": "manifest-is-true",
    "loses-the-keys": "manifest-is-true",
    "makes-up-digests": "manifest-is-true",
    "names-another-attempt": "manifest-is-true",
    "writes-its-manifest-first": "killed-leaves-no-manifest",
    "never-gives-up": "superseded-ends",
    "begins-anew": "superseded-ends",
    "begins-anew-until-it-is-told": "superseded-ends",
    "begins-behind-its-deadline": "deadline-is-kept",
    "looks-at-its-deadline-once": "deadline-is-kept",
    "takes-an-error-for-the-end": "source-fails-prepare-fails",
    "reads-all-of-it": "range-is-kept",
    "notes-its-end-last": "range-is-kept",
    "notes-another-end": "range-is-kept",
    "prints-its-settings": "secrets-stay-secret",
    "leaves-its-settings": "secrets-stay-secret",
    "writes-all-of-it-again": "repairs-write-the-same",
    "repairs-with-other-rows": "repairs-write-the-same",
    "ends-what-it-repairs": "repairs-write-the-same",
}
RIGHT = "none"


class Own:
    """One prepare: a transaction for each part, one after the other."""

    def __init__(self, fault: str, spec: ApplicationSpec, settings: KafkaSettings) -> None:
        self.fault = fault
        self.spec = spec
        self.settings = settings
        self.options: WriteOptions = spec.options
        is_early = time.time() * 1000 < self.options.deadline_ms
        if fault == "begins-behind-its-deadline" or (fault == "looks-at-its-deadline-once" and is_early):
            self.options = replace(self.options, deadline_ms=int(time.time() * 1000) + 600_000)
        self.store = ManifestStore(self.options.manifest_dir)
        self.checked: Checked = check_cluster(settings, self.options)

    def run(self) -> None:
        ref = self.options.attempt
        if self.fault != "claims-nothing":
            self.store.claim(ref, f"process {os.getpid()}")
        if self.fault == "prints-its-settings":
            print(f"settings: {self.settings.texts}", flush=True)
        if self.fault == "leaves-its-settings":
            Path(self.store.path(ref)).with_suffix(".settings").write_text(self.settings.to_json(), encoding="utf-8")
        folder, tasks = (self.spec.job_args[name] for name in ("folder", "tasks"))
        begin, end = self.rows()
        size = -(-(end - begin) // tasks)
        entries = []
        for part in range(tasks):
            if not ref.writes(part) and self.fault != "writes-all-of-it-again":
                entries.append(ManifestEntry(part, None, ()))
                continue
            first = begin + part * size
            entries.append(self.part(part, numbered(first, min(first + size, end), folder)))
        if self.fault == "notes-its-end-last":
            self.note_end(end)
        if self.fault == "names-another-attempt":
            ref = replace(ref, attempt=ref.attempt + 1)
        if self.fault != "writes-its-manifest-first":
            self.leave(ref, entries)

    def rows(self) -> tuple[int, int]:
        """The first, and the one behind the last; a cursor's range has both, or the end is noted here."""
        records = int(self.spec.job_args["records"])
        if self.spec.range is None or self.fault == "reads-all-of-it":
            return 0, records
        since, until = self.spec.range["since"], self.spec.range["until"]
        if until is None and self.fault != "notes-its-end-last":
            self.note_end(records - 1 if self.fault == "notes-another-end" else records)
        return since, records if until is None else until

    def note_end(self, end: int) -> None:
        if self.spec.range is not None and self.spec.range["until"] is None:
            self.store.note_until(self.options.attempt, position.dump(end))

    def part(self, number: int, batches: Iterator[pa.RecordBatch]) -> ManifestEntry:
        ref = self.options.attempt
        if self.fault == "writes-all-of-it-again" and not ref.writes(number):
            ref = replace(ref, repairs=((number, ref.attempt),))
        if self.fault == "writes-plainly":
            return self.plainly(number, batches)
        writer, read = self.writer(ref, number), list[pa.RecordBatch]()
        try:
            writer.open()
            for order, batch in enumerate(self.read(batches)):
                if self.fault == "loses-the-last-row" and order == 1:
                    batch = batch.slice(0, batch.num_rows - 1)
                if self.fault == "loses-the-keys":
                    batch = batch.select(["value"])
                if self.fault == "repairs-with-other-rows" and ref.repairs:
                    batch = batch.set_column(1, "value", batch["key"])
                read.append(batch)
                writer.write(batch)
                if self.fault == "writes-its-manifest-first" and number == 0 and order == 0:
                    parts = int(self.spec.job_args["tasks"])
                    self.leave(ref, [ManifestEntry(n, None, ()) for n in range(parts)])
            transaction, writes = writer.prepare()
        except KafkaEosError:
            while self.fault == "never-gives-up":
                time.sleep(1)
            until_told = self.fault == "begins-anew-until-it-is-told" and not self.store.superseded_by(ref)
            if self.fault != "begins-anew" and not until_told:
                raise
            return self.anew(number, [*read, *batches])
        except BaseException:
            writer.abort()
            raise
        finally:
            writer.close()
        if self.fault == "commits-by-itself":
            self.end(transaction, Verdict.COMMIT)
        if self.fault == "ends-what-it-repairs" and ref.repairs:
            self.end(transaction, Verdict.ABORT)
        if self.fault == "makes-up-digests":
            writes = tuple(replace(w, digest="0" * len(w.digest)) for w in writes)
        if self.fault == "repairs-with-other-rows" and ref.repairs:
            before = self.store.read(replace(ref, attempt=ref.attempt - 1, repairs=())).entries[number]
            pairs = zip(writes, before.writes, strict=True)
            writes = tuple(replace(w, bytes=old.bytes, digest=old.digest) for w, old in pairs)
        return ManifestEntry(number, transaction, writes)

    def writer(self, ref: AttemptRef, number: int) -> TransactionWriter:
        return make_writer(
            self.checked.writer.value,
            self.settings,
            self.options.target(
                ref.task_id(number, number), self.checked.limits, two_phase_commit=self.checked.two_phase_commit
            ),
        )

    def anew(self, number: int, batches: list[pa.RecordBatch]) -> ManifestEntry:
        """All of it once more, under the same transactional id."""
        writer = self.writer(self.options.attempt, number)
        try:
            writer.open()
            for batch in batches:
                writer.write(batch)
            return ManifestEntry(number, *writer.prepare())
        finally:
            writer.close()

    def end(self, transaction: PreparedTransaction, verdict: Verdict) -> None:
        ref = self.options.attempt
        with Wire(self.settings) as wire:
            Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id).end_many([transaction], verdict)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except RuntimeError:
            if self.fault != "takes-an-error-for-the-end":
                raise

    def plainly(self, number: int, batches: Iterator[pa.RecordBatch]) -> ManifestEntry:
        producer = Producer(self.settings.for_librdkafka())
        for batch in batches:
            for row in batch.to_pylist():
                producer.produce(self.options.topics[0], row["value"], row["key"])
        producer.flush(30)
        return ManifestEntry(number, None, ())

    def leave(self, ref: AttemptRef, entries: list[ManifestEntry]) -> None:
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
            )
        )
        self.store.write(self.options.attempt, text)


if __name__ == "__main__":
    fault, given = sys.argv[1:]
    assert fault in {RIGHT, *FAULTS}
    Own(fault, ApplicationSpec.from_json(given), KafkaSettings.from_json(os.environ[SETTINGS_VARIABLE])).run()
