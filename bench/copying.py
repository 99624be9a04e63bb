"""What the copy of a lost transaction costs for each record, by the kernel and without it.

``python -m bench.copying``. A broker of its own; a transaction of the arrow writer is aborted, and copied by each way
in turn, as commit does it. Shown are seconds of a copy, this process's CPU over it, with all that is read and sent,
and CPU for the digest alone, of batches that are at hand. Medians of all rounds but the first.

Knobs: ``RECORDS`` (1000000), ``SIZES`` (140,1024), ``ROUNDS`` (5), ``CODEC`` (none).
"""

from __future__ import annotations

import os
import statistics
import time
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.copier import Copier, read_batches
from airflow_kafka_eos.kafka.producer.interface import TopicLimits, WriteTarget
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.kafka.records.kernel import SWITCH, kernel
from airflow_kafka_eos.kafka.records.stored import StoredBatch, feed
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction
from bench.identity import LEDGER, NAMESPACE

RECORDS = int(os.environ.get("RECORDS", "1000000"))
SIZES = [int(size) for size in os.environ.get("SIZES", "140,1024").split(",")]
ROUNDS = int(os.environ.get("ROUNDS", "5"))
CODEC = os.environ.get("CODEC", "none")
#: By the switch that turns the kernel off.
WAYS = {"kernel": "on", "Python": "off"}
_BATCH = 10_000
_TIMEOUT_MS = 600_000


class Lost(NamedTuple):
    """A transaction that was aborted. ``sample``: the beginning of its largest partition's log."""

    transaction: PreparedTransaction
    writes: tuple[PartitionWrites, ...]
    topic_ids: dict[str, str]
    sample: list[StoredBatch]


def lost(settings: KafkaSettings, wire: Wire, topic: str, size: int) -> Lost:
    """Random values of that size, with a short key each."""
    named = TransactionalId(LoadIdentity(NAMESPACE, "copying", topic), LEDGER, 1, 0, 0)
    deadline_ms = int(time.time() * 1000) + 60_000
    target = WriteTarget(named, {topic: TopicLimits(2, 1_048_588)}, topic, _TIMEOUT_MS, deadline_ms)
    writer = make_writer("arrow", settings, target)
    chance = np.random.default_rng(1)
    writer.open()
    for start in range(0, RECORDS, _BATCH):
        rows = range(start, min(start + _BATCH, RECORDS))
        letters = chance.integers(97, 123, len(rows) * size, dtype=np.uint8).tobytes()
        values = [letters[at : at + size] for at in range(0, len(letters), size)]
        writer.write(pa.RecordBatch.from_pydict({"key": [b"%d" % row for row in rows], "value": values}))
    transaction, writes = writer.prepare()
    writer.close()
    end(wire, transaction)
    ids = {topic: Partitions(wire).topic_info([topic])[topic].topic_id}
    largest = max(writes, key=lambda w: w.records)
    sample = [b for b, _ in zip(read_batches(wire, transaction, largest, ids[topic]), range(20), strict=False)]
    return Lost(transaction, writes, ids, sample)


def end(wire: Wire, transaction: PreparedTransaction) -> None:
    coordinator, name = Coordinator(wire, namespace=NAMESPACE, ledger_id=LEDGER), transaction.transactional_id
    coordinator.end(transaction, Verdict.ABORT)
    while coordinator.describe([name])[name].is_open:
        time.sleep(0.05)


def copy(wire: Wire, one: Lost, topic: str, number: int) -> tuple[float, float]:
    """CPU seconds, and seconds."""
    named = TransactionalId(LoadIdentity(NAMESPACE, "copying", topic), LEDGER, number, role=IdRole.LOAD)
    copier = Copier(wire, named, timeout_ms=_TIMEOUT_MS, deadline_ms=int(time.time() * 1000) + 60_000)
    cpu, begun = time.process_time(), time.monotonic()
    copied, _ = copier.copy(one.transaction, one.writes, one.topic_ids)
    took = time.process_time() - cpu, time.monotonic() - begun
    copier.close()
    end(wire, copied)
    return took


def digest(sample: list[StoredBatch]) -> float:
    """CPU seconds a record."""
    into, cpu, records = PartitionDigest(), time.process_time(), 0
    while time.process_time() - cpu < 0.3:
        for batch in sample:
            feed(batch, into)
            records += batch.records
    return (time.process_time() - cpu) / records


def main() -> None:
    print(f"µs a record, {RECORDS:,} records, compression {CODEC}")
    print("bytes  way        copy   copy's CPU   digest's CPU")
    with LocalKafka() as kafka:
        settings = KafkaSettings.from_mapping(
            {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": CODEC}
        )
        with Wire(settings) as wire:
            for size in SIZES:
                topic = f"copying-{size}"
                kafka.create_topic(topic, partitions=2)
                one = lost(settings, wire, topic, size)
                found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
                for number in range(ROUNDS * len(WAYS)):
                    way = list(WAYS)[number % len(WAYS)]
                    os.environ[SWITCH] = WAYS[way]
                    kernel.cache_clear()
                    cpu, took = copy(wire, one, topic, number + 2)
                    found[way].append((took / RECORDS, cpu / RECORDS, digest(one.sample)))
                for way, rounds in found.items():
                    took, cpu, alone = (statistics.median(of) * 1e6 for of in zip(*rounds[1:] or rounds, strict=True))
                    print(f"{size:5}  {way:8}{took:7.2f}{cpu:13.3f}{alone:15.3f}", flush=True)


if __name__ == "__main__":
    main()
