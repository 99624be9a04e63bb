"""The clauses of the contract (docs/prepare-contract.md), each with the trial that shows a breach.

A trial takes the part of Airflow: it opens attempts in the ledger, supersedes and sweeps them, decides and commits, and
counts as a read_committed reader. What it asks of a prepare is what the protocol rests on, not how it writes.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from airflow_kafka_eos import naming
from airflow_kafka_eos.errors import InDoubtError, KafkaEosError, ManifestError, RecordsGoneError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings, is_secret_name
from airflow_kafka_eos.kafka.producer.copier import read_batches
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.kafka.records.stored import feed
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide, problems_by_now
from airflow_kafka_eos.reasons import without_known
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
from airflow_kafka_eos.transaction import PreparedTxnState, TopicPartition, TransactionDescription

NAMESPACE = "conformance"
_PARTITIONS = 3
_HOLD_MS = 600_000
_OWNER = "conformance test"
_MARGIN_S = 20
_SECRETS = "secrets-stay-secret"
#: What is shorter stands in many a text by chance.
_SHORTEST_SECRET = 8
#: Bytes of a batch: what was handed to a writer half-way is to be on its way, and not in its memory.
_BATCH_BYTES = 256
#: Seconds for that.
_ON_ITS_WAY_S = 10
#: Seconds that a prepare has at least to begin all that it writes at once.
_FIRST_DEADLINE_S = 10.0
#: Seconds for what was sent right before the deadline, and for clocks that differ.
_LATE_S = 5.0
#: Parts for each task of the place, so that not all are written at once.
_MANY = 8


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
    """Loads on a topic of their own, one behind the other, and every process that was started for them.

    :param given: the settings that the prepare gets.
    :param loaded: so many rows were loaded and are visible.
    """

    place: Place
    prepare: Prepare
    clause: str
    session: Session
    settings: KafkaSettings
    given: KafkaSettings
    topic: str
    load: LoadIdentity
    store: ManifestStore
    started: list[Running]
    asked: dict[AttemptRef, WriteOptions] = dataclasses.field(default_factory=dict)
    loaded: int = 0

    def attempt(self, *, told: bool = True) -> AttemptRow:
        """Open the next one, as begin and prepare do: what older ones have open is swept.

        :param told: whether older ones find the note that they are superseded.
        """
        begin(self.session, self.load, owner=_OWNER)
        row = submit(self.session, self.load, owner=_OWNER)
        for old in self.session.ledger.attempts(self.load):
            if told and old.number < row.number:
                self.store.note_superseded(self.reference(old), f"attempt {row.number}")
        return row

    def reference(self, row: AttemptRow) -> AttemptRef:
        return reference(self.session, row)

    def start(
        self, ref: AttemptRef, *, deadline_in_s: float = 600, gate: Gate | None = None, tasks: int | None = None,
        reads: Mapping[str, Any] | None = None,
    ) -> Running:  # fmt: skip
        """Have the prepare under test write an attempt; its gate is open if none is given.

        :param tasks: in place of the place's.
        :param reads: a cursor's range.
        """
        if gate is None:
            gate = self.gate()
            gate.open()
        place = self.place
        options = WriteOptions(
            ref, self.store.base, (self.topic,), _HOLD_MS, int((time.time() + deadline_in_s) * 1000)
        )
        given = {"records": place.records, "folder": str(gate.folder), "tasks": tasks or place.tasks}
        self.asked[ref] = options
        spec = ApplicationSpec(options, job=place.job, job_args=given, range=reads)
        running = self.prepare(Assignment(spec.to_json(), self.given.to_json(), place.records, gate))
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

    def half_way(self, reads: Mapping[str, Any] | None = None) -> tuple[AttemptRef, Gate, Running]:
        """Have the prepare write a new attempt, up to its gate; one that has ended before is refused.

        :param reads: a cursor's range.
        """
        ref, gate = self.reference(self.attempt()), self.gate()
        running = self.start(ref, gate=gate, reads=reads)

        def done() -> bool:
            if gate.reached or not self.has_ended(running):
                return gate.reached
            return gate.reached or self.refuse(f"it ended with {running.wait(0)} before it was half-way", running)

        wait_for(f"{self.clause}: handing over the first half of the rows", done, self.place.patience_s)
        return ref, gate, running

    def has_ended(self, running: Running) -> bool:
        try:
            running.wait(0)
        except TimeoutError:
            return False
        return True

    def known(self, ref: AttemptRef) -> dict[str, TransactionDescription]:
        """What coordinators know of an attempt, but for its probe, which nothing is written with."""
        coordinator = self.session.coordinator
        found = {name: naming.parse(name) for name in coordinator.list_known(ref.id_prefix)}
        return coordinator.describe(
            name for name, id in found.items() if id is not None and ref.owns(id) and id.role is not IdRole.PROBE
        )

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

    def must_be_visible(self, where: str) -> None:
        """All that was loaded, each record once, and nothing else."""
        expected = Counter((key(n), value(n)) for n in range(self.loaded))
        seen = Counter(_committed(self.settings, self.topic))
        missing, extra = expected - seen, seen - expected
        if missing or extra:
            self.refuse(
                f"{where} a read_committed reader misses {missing.total()} of {self.loaded} records and sees "
                f"{extra.total()} that it must not see"
            )

    def complete(self, ref: AttemptRef, up_to: int | None = None) -> Manifest:
        """Decide and commit what was prepared, and count it.

        :param up_to: the row behind its last one; None: it has all. It begins where the load before has ended.
        """
        up_to = self.place.records if up_to is None else up_to
        manifest = self.manifest(ref)
        self.must_be_visible("before the decision")
        if problem := not_as_asked(manifest, self.asked[ref]):
            self.refuse(problem)
        if manifest.records != up_to - self.loaded:
            self.refuse(f"its manifest counts {manifest.records} records, and the load has {up_to - self.loaded}")
        self.must_be_the_log(manifest)
        try:
            record_prepared(self.session, manifest, writers_left=self.store.writers_left(manifest))
            decide(self.session, manifest, Conditions(), owner=_OWNER, margin_s=_MARGIN_S)
        except KafkaEosError as e:
            self.refuse(f"decide refuses its manifest: {e}")
        commit(self.session, self.load, deadline_s=60)
        self._must_leave_nothing_open(ref.attempt)  # what a late writer has open holds back readers
        self.loaded = up_to
        self.must_be_visible("after commit and cleanup")
        return manifest

    def must_be_the_log(self, manifest: Manifest) -> None:
        """The digests are the log's: by them a repair knows later that it writes the same."""
        for prepared in manifest.prepared:
            for writes in prepared.writes:
                found, topic_id = PartitionDigest(), manifest.topics[writes.topic].topic_id
                try:
                    for batch in read_batches(self.session.partitions.wire, prepared.transaction, writes, topic_id):
                        feed(batch, found)
                except (InDoubtError, RecordsGoneError) as e:
                    self.refuse(f"the log has not what its manifest says: {e}")
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
        secrets = self.given.secrets  # before anything is cut: half a secret would not be found
        said = "" if running is None else without_known(running.output(), secrets)[-4000:]
        told = f"\nIt has printed:\n{said}" if running is not None else ""
        raise NotConforming(without_known(f"{self.clause}: {why}", secrets) + told)


def _manifest_is_true(trial: _Trial) -> None:
    ref = trial.reference(trial.attempt())
    running = trial.start(ref)
    trial.must_succeed(running)
    if trial.store.claimant(ref) is None:
        trial.refuse("it wrote the attempt without claiming it", running)
    trial.complete(ref)


def _one_claim(trial: _Trial) -> None:
    ref, gate, first = trial.half_way()
    second = trial.start(ref)
    trial.must_fail(second, "although another one had claimed the attempt before")
    gate.open()
    trial.must_succeed(first)
    trial.complete(ref)


def _killed(trial: _Trial) -> None:
    ref, gate, running = trial.half_way()
    running.kill()
    gate.open()
    time.sleep(2)  # for whatever of it was not killed
    trial.must_have_no_manifest(ref, "of an attempt that was killed while it was written")
    again = trial.reference(trial.attempt())
    trial.must_succeed(trial.start(again))
    trial.complete(again)


def _superseded(trial: _Trial) -> None:
    ref, gate, late = trial.half_way()
    begun = _begun(trial, ref)
    again = trial.reference(trial.attempt(told=False))  # the note saves work, and what counts is the fence
    ended = _ended(trial, begun)
    gate.open()
    running = trial.start(again)
    trial.must_end(late)  # as it likes: the ledger believes nothing of it any more
    # of its own ids only: in scope task, another try of a task may begin under another one
    for name, seen in trial.session.coordinator.describe(begun).items():
        if seen.state != ended.get(name):
            trial.refuse(f"it has initialised {name} anew, whose transaction was ended from outside", late)
    trial.must_succeed(running)
    trial.complete(again)


def _begun(trial: _Trial, ref: AttemptRef) -> list[str]:
    """The transactions that it has open half-way; none where it sends nothing before its end."""
    until = time.monotonic() + _ON_ITS_WAY_S
    while not (found := [name for name, seen in trial.known(ref).items() if seen.is_open]) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _ended(trial: _Trial, names: Iterable[str]) -> dict[str, PreparedTxnState]:
    """How they stand once they were swept. To end one takes its coordinator a moment."""
    wanted = list(names)

    def over() -> bool:
        return not any(seen.is_open for seen in trial.session.coordinator.describe(wanted).values())

    wait_for(f"{trial.clause}: a sweep ends what the superseded attempt has open", over, 60)
    return {name: seen.state for name, seen in trial.session.coordinator.describe(wanted).items()}


def _deadline(trial: _Trial) -> None:
    ref, began = trial.reference(trial.attempt()), time.monotonic()
    late = trial.start(ref, deadline_in_s=-60)
    trial.must_fail(late, "although its deadline had passed before it began")
    took = time.monotonic() - began  # it had to start for that
    trial.must_have_no_manifest(ref, "of an attempt whose deadline had passed")
    described = trial.session.coordinator.describe(trial.session.coordinator.list_open(trial.session.id_prefix))
    begun = [name for name, seen in described.items() if any(p.topic == trial.topic for p in seen.partitions)]
    if begun:
        trial.refuse(f"it began {begun[0]} behind its deadline", late)
    ends = trial.session.partitions.end_offsets(_partitions_of(trial))
    if any(ends.values()):
        trial.refuse("it wrote records behind its deadline", late)
    _deadline_passes_half_way(trial, max(_FIRST_DEADLINE_S, 2 * took))


def _deadline_passes_half_way(trial: _Trial, deadline_s: float) -> None:
    """Of more parts than are written at once, the last ones come to their turn when it has passed.

    :param deadline_s: the first one to try; where it passes before anything is half-way, it is doubled.
    """
    most_s = 2 * max(deadline_s, trial.place.patience_s)
    while True:
        ref, gate, began = trial.reference(trial.attempt()), trial.gate(), time.monotonic()
        running = trial.start(ref, deadline_in_s=deadline_s, gate=gate, tasks=_MANY * trial.place.tasks)
        while not gate.reached and not trial.has_ended(running) and time.monotonic() - began < deadline_s:
            time.sleep(0.05)
        took = time.monotonic() - began
        if gate.reached:
            break
        gate.fail()  # whatever of it runs on elsewhere
        running.kill()
        deadline_s *= 2
        if deadline_s > most_s:
            trial.refuse("its deadline passed before it was half-way, however late that was", running)
    # what begins beside the first part may be under way yet: the slower all is, the longer
    time.sleep(max(0, deadline_s - took) + max(_LATE_S, took))
    known = trial.known(ref)
    gate.open()
    trial.must_end(running)  # by an error, or not: all was begun before
    for name, seen in trial.known(ref).items():
        before = known.get(name)
        if before is None or (seen.is_open and seen.state != before.state):
            trial.refuse(f"it has initialised {name} behind its deadline, which passed while it was writing", running)


def _source_fails(trial: _Trial) -> None:
    ref, gate, running = trial.half_way()
    gate.fail()
    trial.must_fail(running, "although its source had failed")
    trial.must_have_no_manifest(ref, "of rows whose source had failed")
    again = trial.reference(trial.attempt())
    trial.must_succeed(trial.start(again))
    trial.complete(again)


def _range(trial: _Trial) -> None:
    """Two loads of one cursor: the first one's end is given, the second one's is chosen by the job."""
    records = trial.place.records
    middle = records // 3
    ref = trial.reference(trial.attempt())
    trial.must_succeed(trial.start(ref, reads={"since": 0, "until": middle}))
    trial.complete(ref, up_to=middle)
    trial.load = dataclasses.replace(trial.load, key=f"{trial.load.key}-next")
    ref, gate, running = trial.half_way(reads={"since": middle, "until": None})
    if trial.store.until(ref) is None:
        trial.refuse("it has handed rows to its writer, and not noted where its range ends", running)
    gate.open()
    trial.must_succeed(running)
    if (noted := json.loads(trial.store.until(ref) or "null")) != records:
        trial.refuse(f"it has noted that its range ends at {noted}, and the job has chosen {records}", running)
    trial.complete(ref)


def _secrets(trial: _Trial) -> None:
    """Errors are where settings are printed. What was printed is looked at behind every trial."""
    _, gate, running = trial.half_way()
    gate.fail()
    trial.must_end(running)


def _must_show_no_secret(trial: _Trial) -> None:
    secrets = [v for k, v in trial.given.texts.items() if is_secret_name(k) and len(v) >= _SHORTEST_SECRET]

    def shows(text: str) -> bool:
        return without_known(text, secrets) != text

    for running in trial.started:
        if shows(running.output()):
            trial.refuse("it has printed a secret of Kafka's settings", running)
    for file in trial.place.manifest_dir.rglob("*"):
        with suppress(OSError):
            if file.is_file() and shows(file.read_text(encoding="utf-8", errors="replace")):
                trial.refuse(f"{file} holds a secret of Kafka's settings")


def _repairs(trial: _Trial) -> None:
    first = trial.reference(trial.attempt())
    trial.must_succeed(trial.start(first))
    whole = trial.manifest(first)
    trial.must_be_the_log(whole)
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
    trial.must_be_the_log(repaired)
    if found := problems_by_now(trial.session, repaired, _MARGIN_S):
        trial.refuse(f"the brokers do not confirm what it wrote again: {'; '.join(found[:3])}")


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
    Clause("range-is-kept", _range),
    Clause(_SECRETS, _secrets),
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
        trial = _Trial(place, prepare, clause, session, settings, _given(settings), topic, load, store, started)
        try:
            yield trial
        finally:
            for running in started:
                running.kill()
            _end(trial)
        trial.clause = _SECRETS
        _must_show_no_secret(trial)


def _given(settings: KafkaSettings) -> KafkaSettings:
    """With a secret to look for, where there is none: without SASL, nobody asks for a password."""
    given = {"batch.size": str(_BATCH_BYTES), **settings.texts}
    if not settings.security_protocol.startswith("SASL") and not any(map(is_secret_name, given)):
        given["sasl.password"] = f"made-up-{uuid.uuid4().hex}"
    return KafkaSettings.from_mapping(given)


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
