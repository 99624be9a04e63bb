"""A ledger and a broker, both real, and short ways to do what Spark and Airflow would do with them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import Producer

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.confluent import ConfluentWriter
from airflow_kafka_eos.kafka.producer.interface import TopicLimits, WriteTarget
from airflow_kafka_eos.kafka.producer.writers import initialise, make_writer
from airflow_kafka_eos.kafka.records.digest import ALGORITHM
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry, PartitionWrites
from airflow_kafka_eos.naming import AnyId, IdRole, TransactionalId
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.transaction import TWO_PHASE_TIMEOUT_MS, PreparedTransaction, PreparedTxnState
from tests.reading import committed_values

RUN = "dag/run"


@dataclass
class World:
    """One topic, one load, one session."""

    session: Session
    settings: KafkaSettings
    topic: str
    load: LoadIdentity
    timeout_ms: int = 600_000
    _task_attempts: list[int] = field(default_factory=lambda: [0])

    def open_attempt(self, owner: str = RUN) -> AttemptRow:
        begin(self.session, self.load, owner=owner)
        return submit(self.session, self.load, owner=owner)

    def write(self, ref: AttemptRef, values: Sequence[str], spark_partition: int = 0) -> ManifestEntry:
        """What one Spark task attempt does: one prepared transaction, its writer gone."""
        self._task_attempts[0] += 1
        name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, spark_partition, self._task_attempts[0])
        info = self.session.partitions.topic_info([self.topic])[self.topic]
        target = WriteTarget(
            transactional_id=name,
            topics={self.topic: TopicLimits(info.partitions, 1_000_000)},
            default_topic=self.topic,
            transaction_timeout_ms=self.timeout_ms,
            deadline_ms=time.time_ns() // 10**6 + 60_000,
        )
        writer = ConfluentWriter(
            self.settings, target, lambda n: self.session.coordinator.describe([n]).get(n)
        )
        writer.open()
        writer.write(pa.RecordBatch.from_pydict({"key": list(values), "value": list(values)}))
        transaction, writes = writer.prepare()
        writer.close()
        return ManifestEntry(spark_partition, transaction, writes)

    def write_arrow(
        self,
        name: AnyId,
        values: Sequence[str],
        *,
        two_phase: bool = False,
        shared: PreparedTxnState | None = None,
        partition: int | None = None,
    ) -> tuple[PreparedTransaction, tuple[PartitionWrites, ...]]:
        """One prepared transaction, or one task's part of a shared one, by the writer that can do both."""
        info = self.session.partitions.topic_info([self.topic])[self.topic]
        deadline_ms = time.time_ns() // 10**6 + 60_000
        limits = {self.topic: TopicLimits(info.partitions, 1_000_000)}
        writer = make_writer(
            "arrow",
            self.settings,
            WriteTarget(name, limits, self.topic, self.timeout_ms, deadline_ms, two_phase, shared),
        )
        try:
            writer.open()
            places = pa.array([partition] * len(values), pa.int32())
            columns = {"key": pa.array(values), "value": pa.array(values), "partition": places}
            writer.write(pa.RecordBatch.from_pydict(columns))
            return writer.prepare()
        finally:
            writer.close()

    def prepare_shared(self, *parts: Sequence[str], two_phase: bool = False, owner: str = RUN) -> Manifest:
        """An attempt of scope load: each part by a task of its own, into the Kafka partition of that number."""
        ref = reference(self.session, self.open_attempt(owner))
        name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, role=IdRole.LOAD)
        deadline_ms = int(time.time() * 1000) + 60_000
        state = initialise(
            self.settings, name, self.timeout_ms, two_phase_commit=two_phase, deadline_ms=deadline_ms
        )
        entries = [
            ManifestEntry(n, *self.write_arrow(name, part, shared=state, partition=n))
            for n, part in enumerate(parts)
        ]
        manifest = self.manifest(ref, entries, scope=TransactionScope.LOAD, two_phase=two_phase)
        record_prepared(self.session, manifest)
        return manifest

    def prepare_two_phase(self, *parts: Sequence[str]) -> Manifest:
        """An attempt of scope task, its transactions without a timeout."""
        ref = reference(self.session, self.open_attempt())
        entries = [
            ManifestEntry(
                n,
                *self.write_arrow(
                    TransactionalId(ref.load, ref.ledger_id, ref.attempt, n, n), part, two_phase=True
                ),
            )
            for n, part in enumerate(parts)
        ]
        manifest = self.manifest(ref, entries, two_phase=True)
        record_prepared(self.session, manifest)
        return manifest

    def manifest(
        self,
        ref: AttemptRef,
        entries: Iterable[ManifestEntry],
        *,
        scope: TransactionScope = TransactionScope.TASK,
        two_phase: bool = False,
    ) -> Manifest:
        return Manifest(
            attempt=ref,
            created_at="2026-01-01T00:00:00+00:00",
            writer="test",
            scope=scope,
            two_phase_commit=two_phase,
            digest_algorithm=ALGORITHM,
            transaction_timeout_ms=TWO_PHASE_TIMEOUT_MS if two_phase else self.timeout_ms,
            topics=self.session.partitions.topic_info([self.topic]),
            entries=tuple(entries),
        )

    def prepare(self, *parts: Sequence[str], owner: str = RUN) -> Manifest:
        """An attempt with one prepared transaction per part."""
        ref = reference(self.session, self.open_attempt(owner))
        manifest = self.manifest(ref, [self.write(ref, part, n) for n, part in enumerate(parts)])
        record_prepared(self.session, manifest)
        return manifest

    def decide(
        self, manifest: Manifest, checks: Conditions | None = None, margin_s: float | None = None
    ) -> AttemptRow:
        if margin_s is None:  # half of it may pass until the ledger's lock is ours, and the machine may be busy
            margin_s = max(1.0, min(20.0, self.timeout_ms / 4000))
        return decide(self.session, manifest, checks or Conditions(), owner=RUN, margin_s=margin_s)

    def commit(self, deadline_s: float = 30) -> AttemptRow:
        return commit(self.session, self.load, deadline_s=deadline_s)

    def load_all(self, *parts: Sequence[str]) -> Manifest:
        manifest = self.prepare(*parts)
        self.decide(manifest)
        self.commit()
        return manifest

    def open_ids(self) -> list[str]:
        """Transactional ids of ours that hold readers back."""
        described = self.session.coordinator.describe(self.session.coordinator.list_open(""))
        return sorted(
            n for n, d in described.items() if d.is_open and any(p.topic == self.topic for p in d.partitions)
        )

    def visible(self) -> list[str]:
        """Values that a read_committed reader sees up to the last stable offset, sorted."""
        count = self.session.partitions.topic_info([self.topic])[self.topic].partitions
        return committed_values(self.settings.for_librdkafka()["bootstrap.servers"], self.topic, count)


def foreign_transaction(world: World, name: str, value: str = "foreign") -> Producer:
    """Another application's open transaction on the same topic."""
    producer = Producer(
        {
            "bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"],
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(world.topic, value.encode())
    producer.flush(30)
    return producer
