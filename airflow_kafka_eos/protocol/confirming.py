"""What the broker must confirm of a manifest before it may be decided. No I/O.

Rule: decide-what-is-confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_kafka_eos.kafka.partitions import ProducerState
from airflow_kafka_eos.kafka.preflight import fits_retention
from airflow_kafka_eos.manifest import Manifest, TopicInfo, TransactionWrites
from airflow_kafka_eos.transaction import (
    SEQUENCE_MODULUS,
    CoordinatorState,
    TopicPartition,
    TransactionDescription,
)


@dataclass(frozen=True)
class Observed:
    """What coordinators and partition leaders said about a manifest's transactions."""

    descriptions: Mapping[str, TransactionDescription]
    producers: Mapping[TopicPartition, Sequence[ProducerState]]
    topics: Mapping[str, TopicInfo]
    #: the first offset that each partition still has
    log_starts: Mapping[TopicPartition, int]
    #: transactional ids that have run so long, by the brokers' clocks, that less than the margin is left
    overdue: frozenset[str] = frozenset()
    #: topic -> settings of its retention and compaction; empty where DESCRIBE_CONFIGS is missing
    retention: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def problems(manifest: Manifest, seen: Observed, *, now_ms: int, margin_ms: int) -> list[str]:
    """Everything that speaks against committing, one text each; empty when all is confirmed.

    Each transaction must be open under its recorded state (rule: recorded-identity), with the very timeout and
    partitions of the manifest, the number of records that each leader counted (last sequence + 1: one InitProducerId
    per transaction, rule: one-init-per-transaction), begun in each partition where the manifest says and not ended
    there since, and more than the margin left before the broker's timeout, if it has one (KIP-939).
    """
    found = []
    for name, info in manifest.topics.items():
        now = seen.topics.get(name)
        if now is None or now.topic_id != info.topic_id:
            found.append(f"topic {name} was deleted or recreated since prepare")
    found += _outdated(manifest, seen, now_ms + margin_ms)
    for prepared in manifest.prepared:
        found += _of_transaction(prepared, manifest, seen, now_ms, margin_ms)
    return found


def _outdated(manifest: Manifest, seen: Observed, visible_at_ms: int) -> list[str]:
    """Retention counts by the records' own time, whether they are committed or not."""
    oldest: dict[str, int] = {}
    for prepared in manifest.prepared:
        for w in prepared.writes:
            oldest[w.topic] = min(w.oldest_timestamp_ms, oldest.get(w.topic, w.oldest_timestamp_ms))
    return [
        f"topic {topic} keeps records so shortly that the first may be deleted before they are visible"
        for topic, timestamp_ms in sorted(oldest.items())
        if not fits_retention(seen.retention.get(topic, {}), timestamp_ms, visible_at_ms)
    ]


def _of_transaction(
    prepared: TransactionWrites, manifest: Manifest, seen: Observed, now_ms: int, margin_ms: int
) -> list[str]:
    transaction = prepared.transaction
    name = transaction.transactional_id
    description = seen.descriptions.get(name)
    if description is None:
        return [f"transaction {name} is unknown to its coordinator"]
    if description.coordinator_state is not CoordinatorState.ONGOING:
        return [f"transaction {name} is {description.coordinator_state.value}, not Ongoing"]
    if description.state != transaction.state:
        return [f"transaction {name} is open as {description.state}, recorded was {transaction.state}"]
    found = []
    if description.timeout_ms != manifest.transaction_timeout_ms:
        found.append(
            f"transaction {name}: its coordinator shows a timeout of {description.timeout_ms} ms, the manifest says "
            f"{manifest.transaction_timeout_ms} ms (two_phase_commit={manifest.two_phase_commit})"
        )
    written = {w.topic_partition for w in prepared.writes}
    if description.partitions != written:
        differs = ", ".join(map(str, sorted(description.partitions ^ written)))
        found.append(f"transaction {name}: broker and manifest disagree on partitions {differs}")
    if not description.is_two_phase:
        left = description.time_left_ms(now_ms)
        if name in seen.overdue:
            found.append(f"transaction {name} has less than {margin_ms / 1000:g} s left by its broker's clock")
        elif left < margin_ms:
            found.append(f"transaction {name} has {left / 1000:.1f} s left, {margin_ms / 1000:g} s are required")
    for w in prepared.writes:
        identity = (transaction.state.producer_id, transaction.state.producer_epoch)
        at_leader = seen.producers.get(w.topic_partition, ())
        states = [p for p in at_leader if (p.producer_id, p.producer_epoch) == identity]
        begins = seen.log_starts[w.topic_partition]
        if begins > w.first_offset:
            found.append(
                f"transaction {name}: {w.topic_partition} begins at offset {begins} now, records from {w.first_offset} "
                "on are deleted (retention.ms, retention.bytes or DeleteRecords)"
            )
        count = (states[0].last_sequence + 1) % SEQUENCE_MODULUS if states else 0
        if count != w.records % SEQUENCE_MODULUS:
            found.append(
                f"transaction {name}: {w.topic_partition} has {count} records, the manifest says {w.records}"
            )
        elif states[0].txn_start_offset != w.first_offset:
            # the coordinator may still call it Ongoing: markers can be written past it (KIP-664)
            begun = states[0].txn_start_offset
            shows = "none" if begun < 0 else f"one from offset {begun} on"
            found.append(
                f"transaction {name}: its leader shows {shows} open in {w.topic_partition}, the manifest says from "
                f"offset {w.first_offset} on: somebody has ended it there"
            )
    return found
