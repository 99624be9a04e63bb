"""Coordinators that forget: a decided transaction with partitions that its coordinator never writes an end into."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from functools import partial

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer, open_producers
from airflow_kafka_eos.kafka.producer.writers import initialise
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.load import TransactionScope, Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry, PartitionWrites
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.transaction import PreparedTransaction, TopicPartition
from tests.kafka.open_transactions import wait_until
from tests.protocol.late import add_partition, produce_late
from tests.protocol.world import RUN, World


def prepare_forgotten(
    world: World, values: Sequence[str], *, known: Collection[int], scope: TransactionScope = TransactionScope.TASK
) -> Manifest:
    """A prepared attempt of the transaction that :func:`write_forgotten` writes."""
    ref = reference(world.session, world.open_attempt())
    transaction = write_forgotten(world, ref, values, known=known, scope=scope)
    writes = tuple(_writes(p, value) for p, value in zip(shown(world, transaction), values, strict=True))
    manifest = world.manifest(ref, [ManifestEntry(0, transaction, writes)], scope=scope)
    record_prepared(world.session, manifest)
    return manifest


def write_forgotten(
    world: World,
    ref: AttemptRef,
    values: Sequence[str],
    *,
    known: Collection[int],
    scope: TransactionScope = TransactionScope.TASK,
) -> PreparedTransaction:
    """One transaction, with one record in each partition from 0 on.

    To leaders and in the log it is what a broker leaves that drops markers when it comes up: the coordinator ends it
    in the partitions that it knows of, and calls it complete. A broker must be told not to verify partitions.

    :param known: partitions that the coordinator knows of; those behind the last value's get markers alone.
    """
    name = ref.common_id(IdRole.LOAD) if scope is TransactionScope.LOAD else ref.task_id(0, 0)
    deadline_ms = int(time.time() * 1000) + 60_000
    state = initialise(
        world.settings, name, world.timeout_ms, two_phase_commit=False, deadline_ms=deadline_ms
    )
    transaction = PreparedTransaction(str(name), state)
    for partition in known:
        add_partition(world.settings, transaction, TopicPartition(world.topic, partition))
    for partition, value in enumerate(values):
        place = TopicPartition(world.topic, partition)
        wait_until(partial(_is_written, world, transaction, place, value), f"a leader for {place}")
    return transaction


def decide_anyway(world: World, manifest: Manifest) -> None:
    """Past the checks: they would see that the coordinator does not know of all partitions."""
    world.session.ledger.decide_commit(manifest, decided_by=RUN)


def shown(world: World, transaction: PreparedTransaction) -> list[OpenProducer]:
    """What partition leaders have open of it, by partition."""
    count = world.session.partitions.topic_info([world.topic])[world.topic].partitions
    every = open_producers(
        world.session.partitions.wire, [TopicPartition(world.topic, n) for n in range(count)]
    )
    return [p for p in every if p.state == transaction.state]


def _is_written(world: World, transaction: PreparedTransaction, place: TopicPartition, value: str) -> bool:
    return produce_late(world.settings, transaction, place, value, 0) == 0


def _writes(producer: OpenProducer, value: str) -> PartitionWrites:
    digest = PartitionDigest()
    digest.update(None, value.encode())
    topic, partition = producer.partition
    first = producer.txn_start_offset
    return PartitionWrites(
        topic, partition, 1, len(value), first, first, digest.hexdigest(), producer.last_timestamp_ms
    )


def end(world: World, manifest: Manifest, verdict: Verdict) -> PreparedTransaction:
    """As the commit, or the broker's timeout, does it; returns when the coordinator calls it complete."""
    (transaction,) = [t.transaction for t in manifest.prepared]
    world.session.coordinator.end(transaction, verdict)
    wait_until(lambda: not world.open_ids(), "the coordinator's end")
    return transaction


def sweep_it(world: World) -> KafkaEosError | None:
    poll, give_up = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0), time.monotonic() + 30
    while poll(world.session) is not None:
        assert time.monotonic() < give_up
    return poll.problem
