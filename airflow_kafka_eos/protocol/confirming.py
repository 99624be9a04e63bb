"""What the broker must confirm of a manifest before it may be decided. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_kafka_eos.kafka.partitions import ProducerState
from airflow_kafka_eos.manifest import Manifest, ManifestEntry, TopicInfo
from airflow_kafka_eos.transaction import CoordinatorState, TopicPartition, TransactionDescription

#: librdkafka's and the Java client's sequence numbers wrap from here to 0
SEQUENCE_MODULUS = 2**31


@dataclass(frozen=True)
class Observed:
    """What coordinators and partition leaders said about a manifest's transactions."""

    descriptions: Mapping[str, TransactionDescription]
    producers: Mapping[TopicPartition, Sequence[ProducerState]]
    topics: Mapping[str, TopicInfo]


def problems(manifest: Manifest, seen: Observed, *, now_ms: int, margin_ms: int) -> list[str]:
    """Everything that speaks against committing, one text each; empty when all is confirmed.

    Each transaction must be open under its recorded state (rule 4), with the very partitions of the manifest, the
    number of records that each leader counted (last sequence + 1: one InitProducerId per transaction, rule 8), and
    more than the margin left before the broker's timeout.
    """
    found = []
    for name, info in manifest.topics.items():
        now = seen.topics.get(name)
        if now is None or now.topic_id != info.topic_id:
            found.append(f"topic {name} was deleted or recreated since prepare")
    for entry in manifest.entries:
        if entry.transaction is not None:
            found += _of_transaction(entry, seen, now_ms, margin_ms)
    return found


def _of_transaction(entry: ManifestEntry, seen: Observed, now_ms: int, margin_ms: int) -> list[str]:
    transaction = entry.transaction
    assert transaction is not None
    name = transaction.transactional_id
    description = seen.descriptions.get(name)
    if description is None:
        return [f"transaction {name} is unknown to its coordinator"]
    if description.coordinator_state is not CoordinatorState.ONGOING:
        return [f"transaction {name} is {description.coordinator_state.value}, not Ongoing"]
    if description.state != transaction.state:
        return [f"transaction {name} is open as {description.state}, recorded was {transaction.state}"]
    found = []
    written = {w.topic_partition for w in entry.writes}
    if description.partitions != written:
        differs = ", ".join(map(str, sorted(description.partitions ^ written)))
        found.append(f"transaction {name}: broker and manifest disagree on partitions {differs}")
    left = description.time_left_ms(now_ms)
    if left < margin_ms:
        found.append(f"transaction {name} has {left / 1000:.1f} s left, {margin_ms / 1000:g} s are required")
    for w in entry.writes:
        identity = (transaction.state.producer_id, transaction.state.producer_epoch)
        at_leader = seen.producers.get(w.topic_partition, ())
        states = [p for p in at_leader if (p.producer_id, p.producer_epoch) == identity]
        count = (states[0].last_sequence + 1) % SEQUENCE_MODULUS if states else 0
        if count != w.records % SEQUENCE_MODULUS:
            found.append(
                f"transaction {name}: {w.topic_partition} has {count} records, the manifest says {w.records}"
            )
    return found
