"""The clauses of the contract (docs/prepare-contract.md), each with the trial that shows a breach.

A trial takes the part of Airflow: it opens attempts in the ledger, supersedes and sweeps them, decides and commits, and
counts as a read_committed reader. What it asks of a prepare is what the protocol rests on, not how it writes.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from airflow_kafka_eos.errors import InDoubtError, KafkaEosError, ManifestError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.copier import read_batches
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.kafka.records.stored import feed
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions, not_as_asked
from airflow_kafka_eos.spark.spec import ApplicationSpec
from airflow_kafka_eos.testing.assignment import (
    Assignment,
    Gate,
    NotConforming,
    Place,
    Prepare,
    Running,
    wait_for,
)
from airflow_kafka_eos.testing.rows import key, value
from airflow_kafka_eos.transaction import TopicPartition

NAMESPACE = "conformance"
_PARTITIONS = 3
_HOLD_MS = 600_000
_OWNER = "conformance test"


@dataclass(frozen=True)
class Clause:
    """One thing that every prepare must do.

    :param name: as docs/prepare-contract.md has it.
    """

    name: str
    _trial: Callable[[_Trial], None]

    def check(self, place: Place, prepare: Prepare) -> None:
        """Try it, with a load and a topic of its own.

        :raises NotConforming: the prepare does not keep the clause.
        :raises KafkaEosError: broker or ledger do not answer.
        """
        with _trial(place, prepare, self.name) as trial:
            self._trial(trial)


@dataclass
class _Trial:
    """One load on a topic of its own, and every process that was started for it."""

    place: Place
    prepare: Prepare
    clause: str
    session: Session
    settings: KafkaSettings
    topic: str
    load: LoadIdentity
    store: ManifestStore
    started: list[Running]
    asked: dict[AttemptRef, WriteOptions] = dataclasses.field(default_factory=dict)

    def attempt(self) -> AttemptRow:
        """Open the next one, as begin and prepare do: what older ones have open is swept."""
        begin(self.session, self.load, owner=_OWNER)
        row = submit(self.session, self.load, owner=_OWNER)
        for old in self.session.ledger.attempts(self.load):
            if old.number < row.number:
                self.store.note_superseded(self.reference(old), f"attempt {row.number}")
        return row

    def reference(self, row: AttemptRow) -> AttemptRef:
        return reference(self.session, row)

    def start(self, ref: AttemptRef, *, deadline_in_s: float = 600, gate: Gate | None = None) -> Running:
        """Have the prepare under test write an attempt; its gate is open if none is given."""
        if gate is None:
            gate = self.gate()
            gate.open()
        place = self.place
        options = WriteOptions(
            ref, self.store.base, (self.topic,), _HOLD_MS, int((time.time() + deadline_in_s) * 1000)
        )
        given = {"records": place.records, "folder": str(gate.folder), "tasks": place.tasks}
        self.asked[ref] = options
        spec = ApplicationSpec(options, job=place.job, job_args=given)
        running = self.prepare(Assignment(spec.to_json(), self.settings.to_json(), place.records, gate))
        self.started.append(running)
        return running

    def gate(self) -> Gate:
        return Gate(Path(tempfile.mkdtemp(prefix="gate-", dir=self.place.manifest_dir)))

    def must_succeed(self, running: Running) -> None:
        code = self.must_end(running)
        if code != 0:
            self.refuse(f"it ended with {code} where nothing was wrong", running)

    def must_fail(self, running: Running, where: str) -> None:
        if self.must_end(running) == 0:
            self.refuse(f"it ended with 0 {where}", running)

    def must_end(self, running: Running) -> int:
        try:
            return running.wait(self.place.patience_s)
        except TimeoutError as e:
            self.refuse(f"{e}", running)

    def until_reached(self, gate: Gate, running: Running) -> None:
        """Wait until the prepare is half-way; one that has ended before is refused."""

        def done() -> bool:
            if gate.reached:
                return True
            try:
                code = running.wait(0)
            except TimeoutError:
                return False
            return gate.reached or self.refuse(f"it ended with {code} before it was half-way", running)

        wait_for(f"{self.clause}: handing over the first half of the rows", done, self.place.patience_s)

    def manifest(self, ref: AttemptRef) -> Manifest:
        try:
            return self.store.read(ref)
        except ManifestError as e:
            self.refuse(f"it ended with 0 and left no manifest of this attempt: {e}")

    def must_have_no_manifest(self, ref: AttemptRef, where: str) -> None:
        try:
            self.store.read(ref)
        except ManifestError:
            return
        self.refuse(f"there is a manifest {where}")

    def must_be_visible(self, records: int, where: str) -> None:
        """The whole load, each record once; or none."""
        expected = Counter((key(n), value(n)) for n in range(records))
        seen = Counter(_committed(self.settings, self.topic))
        missing, extra = expected - seen, seen - expected
        if missing or extra:
            self.refuse(
                f"{where} a read_committed reader misses {missing.total()} of {records} records and sees "
                f"{extra.total()} that it must not see"
            )

    def complete(self, ref: AttemptRef) -> Manifest:
        """Decide and commit what was prepared, and count it."""
        manifest = self.manifest(ref)
        self.must_be_visible(0, "before the decision")
        if problem := not_as_asked(manifest, self.asked[ref]):
            self.refuse(problem)
        self._must_have_these_records(manifest)
        try:
            record_prepared(self.session, manifest, writers_left=self.store.writers_left(manifest))
            decide(self.session, manifest, Conditions(), owner=_OWNER, margin_s=20)
        except KafkaEosError as e:
            self.refuse(f"decide refuses its manifest: {e}")
        commit(self.session, self.load, deadline_s=60)
        self._must_leave_nothing_open(ref.attempt)  # what a late writer has open holds back readers
        self.must_be_visible(self.place.records, "after commit and cleanup")
        return manifest

    def _must_have_these_records(self, manifest: Manifest) -> None:
        """The digests are the log's: by them a repair knows later that it writes the same."""
        if manifest.records != self.place.records:
            self.refuse(f"its manifest counts {manifest.records} records, and the load has {self.place.records}")
        for prepared in manifest.prepared:
            for writes in prepared.writes:
                found, topic_id = PartitionDigest(), manifest.topics[writes.topic].topic_id
                for batch in read_batches(self.session.partitions.wire, prepared.transaction, writes, topic_id):
                    feed(batch, found)
                if found.hexdigest() != writes.digest:
                    self.refuse(
                        f"its manifest has the digest {writes.digest} for {writes.topic_partition}, and the log has "
                        f"{found.hexdigest()}"
                    )

    def _must_leave_nothing_open(self, up_to: int) -> None:
        """Once it was swept, as the next attempt, cleanup or maintenance do."""

        def swept() -> bool:
            sweep(self.session, self.load, up_to=up_to, by=_OWNER)
            described = self.session.coordinator.describe(self.session.coordinator.list_open("")).values()
            return not any(d.is_open and any(p.topic == self.topic for p in d.partitions) for d in described)

        wait_for(f"{self.clause}: a sweep ends all that is open on the topic", swept, 60)

    def refuse(self, why: str, running: Running | None = None) -> NoReturn:
        said = "" if running is None else f"\nIt has printed:\n{running.output()[-4000:]}"
        raise NotConforming(f"{self.clause}: {why}{said}")


def _manifest_is_true(trial: _Trial) -> None:
    ref = trial.reference(trial.attempt())
    running = trial.start(ref)
    trial.must_succeed(running)
    if trial.store.claimant(ref) is None:
        trial.refuse("it wrote the attempt without claiming it", running)
    trial.complete(ref)


def _one_claim(trial: _Trial) -> None:
    ref, gate = trial.reference(trial.attempt()), trial.gate()
    first = trial.start(ref, gate=gate)
    trial.until_reached(gate, first)
    second = trial.start(ref)
    trial.must_fail(second, "although another one had claimed the attempt before")
    gate.open()
    trial.must_succeed(first)
    trial.complete(ref)


def _killed(trial: _Trial) -> None:
    ref, gate = trial.reference(trial.attempt()), trial.gate()
    running = trial.start(ref, gate=gate)
    trial.until_reached(gate, running)
    running.kill()
    gate.open()
    time.sleep(2)  # for whatever of it was not killed
    trial.must_have_no_manifest(ref, "of an attempt that was killed while it was written")
    again = trial.reference(trial.attempt())
    trial.must_succeed(trial.start(again))
    trial.complete(again)


def _superseded(trial: _Trial) -> None:
    ref, gate = trial.reference(trial.attempt()), trial.gate()
    late = trial.start(ref, gate=gate)
    trial.until_reached(gate, late)
    again = trial.reference(trial.attempt())
    gate.open()
    trial.must_succeed(trial.start(again))
    trial.must_end(late)  # as it likes: the ledger believes nothing of it any more
    trial.complete(again)


def _deadline(trial: _Trial) -> None:
    ref = trial.reference(trial.attempt())
    late = trial.start(ref, deadline_in_s=-60)
    trial.must_fail(late, "although its deadline had passed before it began")
    trial.must_have_no_manifest(ref, "of an attempt whose deadline had passed")
    described = trial.session.coordinator.describe(trial.session.coordinator.list_open(trial.session.id_prefix))
    begun = [name for name, seen in described.items() if any(p.topic == trial.topic for p in seen.partitions)]
    if begun:
        trial.refuse(f"it began {begun[0]} behind its deadline", late)
    ends = trial.session.partitions.end_offsets(_partitions_of(trial))
    if any(ends.values()):
        trial.refuse("it wrote records behind its deadline", late)


def _source_fails(trial: _Trial) -> None:
    ref, gate = trial.reference(trial.attempt()), trial.gate()
    running = trial.start(ref, gate=gate)
    trial.until_reached(gate, running)
    gate.fail()
    trial.must_fail(running, "although its source had failed")
    trial.must_have_no_manifest(ref, "of rows whose source had failed")
    again = trial.reference(trial.attempt())
    trial.must_succeed(trial.start(again))
    trial.complete(again)


def _repairs(trial: _Trial) -> None:
    first = trial.reference(trial.attempt())
    trial.must_succeed(trial.start(first))
    whole = trial.manifest(first)
    chosen = max(entry.spark_partition for entry in whole.entries if entry.transaction is not None)
    # what asks for a repair is a transaction lost behind the decision; here the next attempt lends its number
    again = trial.reference(trial.attempt())
    again = dataclasses.replace(again, repairs=((chosen, again.attempt),))
    trial.must_succeed(trial.start(again))
    repaired = trial.manifest(again)
    for entry in repaired.entries:
        if entry.spark_partition != chosen and entry.transaction is not None:
            trial.refuse(f"it wrote Spark partition {entry.spark_partition}, and only {chosen} is to be repaired")
    if _figures(repaired, chosen) != _figures(whole, chosen):
        trial.refuse(f"what it wrote again of Spark partition {chosen} is not what it wrote before")


def _figures(manifest: Manifest, spark_partition: int) -> list[tuple[object, ...]]:
    return [
        (w.topic, w.partition, w.records, w.bytes, w.digest)
        for entry in manifest.entries
        if entry.spark_partition == spark_partition
        for w in entry.writes
    ]


#: In the order of docs/prepare-contract.md.
CLAUSES = (
    Clause("one-claim", _one_claim),
    Clause("manifest-is-true", _manifest_is_true),
    Clause("killed-leaves-no-manifest", _killed),
    Clause("superseded-ends", _superseded),
    Clause("deadline-is-kept", _deadline),
    Clause("source-fails-prepare-fails", _source_fails),
    Clause("repairs-write-the-same", _repairs),
)


@contextmanager
def _trial(place: Place, prepare: Prepare, clause: str) -> Iterator[_Trial]:
    settings = KafkaSettings.from_mapping(dict(place.settings))
    mark = uuid.uuid4().hex[:12]
    topic, load = f"kafka-eos-{NAMESPACE}-{mark}", LoadIdentity(NAMESPACE, clause, mark)
    started: list[Running] = []
    with _topic(settings, topic), connect(settings, place.ledger_url, NAMESPACE) as session:
        store = ManifestStore(str(place.manifest_dir))
        trial = _Trial(place, prepare, clause, session, settings, topic, load, store, started)
        try:
            yield trial
        finally:
            for running in started:
                running.kill()
            _end(trial)


def _end(trial: _Trial) -> None:
    """Nothing of a trial stays open, whatever it has shown."""
    rows = trial.session.ledger.attempts(trial.load)
    if rows:
        with suppress(InDoubtError):  # of what has committed by itself nothing is ended: the trial says so
            sweep(trial.session, trial.load, up_to=rows[-1].number, by=_OWNER)


@contextmanager
def _topic(settings: KafkaSettings, name: str) -> Iterator[None]:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(settings.for_librdkafka())
    admin.create_topics([NewTopic(name, _PARTITIONS)])[name].result(30)
    try:
        yield
    finally:
        admin.delete_topics([name])[name].result(30)


def _partitions_of(trial: _Trial) -> list[TopicPartition]:
    return [TopicPartition(trial.topic, p) for p in range(_PARTITIONS)]


def _committed(settings: KafkaSettings, topic: str) -> list[tuple[str, str]]:
    """Keys and values up to the last stable offset, by a reader that is not ours."""
    from confluent_kafka import Consumer, KafkaError
    from confluent_kafka import TopicPartition as Assigned

    consumer = Consumer(
        settings.for_librdkafka()
        | {
            "group.id": str(uuid.uuid4()),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([Assigned(topic, p, 0) for p in range(_PARTITIONS)])
        found, ended, until = list[tuple[str, str]](), set[int](), time.monotonic() + 60
        while len(ended) < _PARTITIONS:
            message = consumer.poll(1)
            if time.monotonic() > until:
                raise NotConforming(f"no end of topic {topic} within 60 s")
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(((message.key() or b"").decode(), (message.value() or b"").decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(int(message.partition() or 0))
            else:
                raise NotConforming(f"topic {topic}: {error}")
        return found
    finally:
        consumer.close()
