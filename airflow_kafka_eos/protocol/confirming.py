"""What the broker must confirm of a manifest before it may be decided. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_kafka_eos.kafka.partitions import ProducerState
from airflow_kafka_eos.kafka.preflight import unfit_topics
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
    #: transactional ids that have run so long, by the brokers' clocks, that less than the margin is left
    overdue: frozenset[str] = frozenset()
    #: topic -> retention.ms and cleanup.policy; empty where DESCRIBE_CONFIGS is missing
    retention: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


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
    started = [d.start_time_ms for d in seen.descriptions.values() if d.start_time_ms > 0]
    for topic in unfit_topics(seen.retention, min(started, default=now_ms), now_ms + margin_ms):
        found.append(
            f"topic {topic} keeps records so shortly that the first may be deleted before they are visible"
        )
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
    if name in seen.overdue:
        found.append(f"transaction {name} has less than {margin_ms / 1000:g} s left by its broker's clock")
    elif left < margin_ms:
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
