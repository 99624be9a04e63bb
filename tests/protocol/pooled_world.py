"""A world whose attempts lease slots of pooled ids, and write with them as Spark's tasks would."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airflow_kafka_eos.kafka.producer.writers import initialise
from airflow_kafka_eos.ledger.rows import AttemptRow, SlotRow
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming, TransactionScope
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry
from airflow_kafka_eos.naming import AnyId, IdRole, name_prefix
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.spark.pooled import Snapshot, choose, snapshot
from airflow_kafka_eos.transaction import TransactionDescription
from tests.protocol.world import RUN, World


@dataclass
class PooledWorld(World):
    """``naming`` may be changed from one load to the next; ``writers_left`` is what the application says."""

    naming: TransactionNaming = TransactionNaming.POOLING
    writers_left: bool = False
    at_lease: dict[AttemptRef, Snapshot] = field(default_factory=dict)

    def of(self, key: str) -> PooledWorld:
        """The same name, another load."""
        return replace(self, load=LoadIdentity(self.load.namespace, self.load.name, key))

    def open_attempt(self, owner: str = RUN) -> AttemptRow:
        begin(self.session, self.load, owner=owner)
        deadline_ms = int(time.time() * 1000) + 60_000
        return submit(self.session, self.load, owner=owner, naming=self.naming, deadline_ms=deadline_ms)

    def driver(self, owner: str = RUN) -> AttemptRef:
        """A submitted attempt whose driver has looked at its slot."""
        ref = reference(self.session, self.open_attempt(owner))
        self.at_lease[ref] = snapshot(self.settings, ref)
        return ref

    def task_id(self, ref: AttemptRef, spark_partition: int = 0, attempt_number: int = 0) -> AnyId:
        """What a Spark task attempt would write with."""
        if ref.slot is None:
            self._task_attempts[0] += 1
            return ref.task_id(spark_partition, self._task_attempts[0])
        return choose(ref, spark_partition, attempt_number, self.at_lease[ref], self._describe)[0]

    def task(self, ref: AttemptRef, values: Sequence[str], spark_partition: int = 0) -> ManifestEntry:
        name = self.task_id(ref, spark_partition)
        return ManifestEntry(spark_partition, *self.write_arrow(name, values))

    def prepare(self, *parts: Sequence[str], owner: str = RUN) -> Manifest:
        ref = self.driver(owner)
        manifest = self.manifest(ref, [self.task(ref, part, n) for n, part in enumerate(parts)])
        record_prepared(self.session, manifest, writers_left=self.writers_left)
        return manifest

    def prepare_shared(self, *parts: Sequence[str], two_phase: bool = False, owner: str = RUN) -> Manifest:
        ref = self.driver(owner)
        name, deadline_ms = ref.common_id(IdRole.LOAD), int(time.time() * 1000) + 60_000
        state = initialise(
            self.settings, name, self.timeout_ms, two_phase_commit=two_phase, deadline_ms=deadline_ms
        )
        entries = [
            ManifestEntry(n, *self.write_arrow(name, part, shared=state, partition=n))
            for n, part in enumerate(parts)
        ]
        manifest = self.manifest(ref, entries, scope=TransactionScope.LOAD, two_phase=two_phase)
        record_prepared(self.session, manifest, writers_left=self.writers_left)
        return manifest

    def load_shared(self, *parts: Sequence[str]) -> Manifest:
        manifest = self.prepare_shared(*parts)
        self.decide(manifest)
        self.commit()
        return manifest

    def clean(self) -> None:
        poll = CleanPoll(self.load, up_to=99, by=RUN, quiet_s=0)
        while poll(self.session) is not None:
            time.sleep(0.01)

    def slot(self, number: int = 0) -> SlotRow:
        found = self.session.ledger.slot(self.load.namespace, self.load.name, number)
        assert found is not None
        return found

    def ids_on_broker(self) -> list[str]:
        """Every id of the load's name that a coordinator knows, in whatever state."""
        ledger_id = self.session.ledger.ledger_id
        return self.session.coordinator.list_known(name_prefix(self.load.namespace, ledger_id, self.load.name))

    def _describe(self, name: AnyId) -> TransactionDescription | None:
        return self.session.coordinator.describe([str(name)]).get(str(name))
