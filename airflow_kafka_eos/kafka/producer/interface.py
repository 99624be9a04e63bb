"""What writes one transaction: the interface that every writer has, what it is told about its target, what it reports.

And why rows cannot be written, in words: the same for every writer.

One writer makes at most one transaction (rule: one-init-per-transaction), and none behind its deadline
(rule: writers-have-a-deadline). It may end that transaction itself until it has reported it
(rule: writer-ends-only-unreported); from then on only a decision or an undecidable attempt does. What it reports is
confirmed before: the topics are still what they were when they were planned for, and the coordinator shows the same
transaction (rule: recorded-identity). No I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_kafka_eos.errors import ProducerFencedError, RecordError, TopicError, UndecidableError
from airflow_kafka_eos.kafka.records.digest import PartitionDigest
from airflow_kafka_eos.manifest import PartitionWrites, TopicInfo
from airflow_kafka_eos.naming import AnyId
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TopicLimits:
    """What a topic takes: partitions 0 to ``partitions`` - 1, batches of ``max_message_bytes`` (topic setting).

    :param topic_id: as the driver saw it; None: as it is when the writer opens.
    :param oldest_timestamp_ms: a record with an earlier timestamp could be deleted by the topic's retention before it
        is committed.
    """

    partitions: int
    max_message_bytes: int
    topic_id: str | None = None
    oldest_timestamp_ms: int = 0


@dataclass(frozen=True)
class WriteTarget:
    """Where one transaction writes and how long it may stay open.

    :param topics: the only topics that may be written, by name.
    :param default_topic: where a row without a topic goes; None: such a row is refused.
    :param transaction_timeout_ms: the broker aborts the transaction after so many milliseconds; not used with
        ``two_phase_commit``.
    :param deadline_ms: milliseconds since the epoch; past it no transaction is begun any more
        (rule: writers-have-a-deadline).
    :param two_phase_commit: initialise with Enable2Pc (KIP-939): the broker never times the transaction out.
    :param shared: scope ``load``: the identity that the driver's InitProducerId was answered. The writer then
        initialises nothing, writes into that transaction, never ends it, and refuses a partition whose leader
        knows the producer id already (rule: scope-load-writes-once).
    :param look: called right before each request that may begin something, its repeats included; what it raises keeps
        that from being sent (rule: writers-have-a-deadline). By one thread at a time. None: nobody looks.
    """

    transactional_id: AnyId
    topics: Mapping[str, TopicLimits]
    default_topic: str | None
    transaction_timeout_ms: int
    deadline_ms: int
    two_phase_commit: bool = False
    shared: PreparedTxnState | None = None
    look: Callable[[], object] | None = None


class TransactionWriter(Protocol):
    """One Kafka transaction, from its beginning to prepared.

    Batches have the columns of Spark's own Kafka sink, in any order: ``key`` and ``value`` (binary or string, null
    allowed), ``headers`` (array<struct<key:string,value:binary>>), ``topic`` (string), ``partition`` (int), and
    ``timestamp`` (timestamp; null: the moment of writing).
    """

    def open(self) -> PreparedTxnState:
        """Begin the transaction: what InitProducerId answered is its identity from here on (rule: recorded-identity).

        :raises UndecidableError: the deadline has passed (rule: writers-have-a-deadline).
        """

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch. May return before they are acknowledged.

        :raises RecordError: a row cannot be written; the error names topic, partition, size and limit.
        """

    def prepare(self) -> tuple[PreparedTransaction, tuple[PartitionWrites, ...]]:
        """Have every record acknowledged and the identity confirmed; the transaction stays open.

        :raises ProducerFencedError: the transaction is not, or not only, the one that ``open`` began.
        """

    def abort(self) -> None:
        """End the transaction as aborted, as well as it goes; for a writer that will not report it.

        Rule: writer-ends-only-unreported.

        It never raises: what cannot be reached now is found by cleanup, or timed out by the broker where there is no
        two-phase commit. A shared transaction is left as it is: it is the driver's to end.
        """

    def close(self) -> None:
        """Free what the writer holds. It ends no transaction: a prepared one stays open."""


def check_unchanged(
    planned: Mapping[str, TopicLimits], now: Mapping[str, TopicInfo], transactional_id: str
) -> None:
    """A topic that got partitions or was made anew while it was written is not what the rows were placed for.

    With more partitions the keys' other records go elsewhere from now on: the order per key would be lost. What was
    written to a topic that is gone is gone with it.

    :param now: as the brokers show them.
    :raises TopicError: naming the topic and what has changed.
    """
    for name, limits in planned.items():
        found = now[name]
        if limits.topic_id is not None and limits.topic_id != found.topic_id:
            raise TopicError(
                f"topic {name!r} was deleted and created again while it was written",
                remedy="Clear prepare to write to the new one",
                transactional_id=transactional_id,
            )
        if limits.partitions != found.partitions:
            raise TopicError(
                f"topic {name!r} has {found.partitions} partitions, it had {limits.partitions} when prepare began: "
                "keys would be found in two places",
                remedy="Clear prepare to write with the new number of partitions",
                transactional_id=transactional_id,
            )


def confirm(
    seen: TransactionDescription | None,
    state: PreparedTxnState,
    written: frozenset[TopicPartition],
    transactional_id: str,
    *,
    shared: bool = False,
) -> None:
    """Have the coordinator say the same: still open, same identity, same partitions.

    :param shared: others write into the transaction too (scope ``load``): it may have more partitions.
    :raises ProducerFencedError: it does not.
    """
    if (
        seen is not None
        and seen.coordinator_state is CoordinatorState.ONGOING
        and seen.state == state
        and (seen.partitions == written or (shared and written <= seen.partitions))
    ):
        return
    if seen is None:
        shown = "no such transaction"
    else:
        shown = f"{seen.coordinator_state.value}, {seen.state}, {len(seen.partitions)} partitions"
    raise ProducerFencedError(
        f"the coordinator shows {shown}; written were {len(written)} partitions as {state}",
        remedy="Someone ended the transaction, or its timeout has passed; clear prepare to write again",
        transactional_id=transactional_id,
    )


def left_ms(deadline_ms: int, now_ms: int, transactional_id: str) -> int:
    """Milliseconds until the deadline, at least 1.

    :param deadline_ms: milliseconds since the epoch, as ``now_ms``.
    :raises UndecidableError: it has passed.
    """
    left = deadline_ms - now_ms
    if left <= 0:
        raise UndecidableError(
            f"the deadline for opening transactions passed {-left} ms ago",
            remedy="Clear prepare: it opens a new attempt. If this comes often, give the load a longer deadline; "
            "a streaming query the option batch.timeout.ms",
            transactional_id=transactional_id,
        )
    return left


@dataclass
class PartitionTally:
    """Records, bytes and digest of one partition, in the order of its log; offsets as they are acknowledged."""

    records: int = 0
    bytes: int = 0
    acknowledged: int = 0
    first_offset: int = -1
    last_offset: int = -1
    oldest_timestamp_ms: int | None = None
    digest: PartitionDigest = field(default_factory=PartitionDigest)

    def date(self, timestamp_ms: int) -> None:
        """Count the time of records; of several, the earliest."""
        if self.oldest_timestamp_ms is None or timestamp_ms < self.oldest_timestamp_ms:
            self.oldest_timestamp_ms = timestamp_ms

    def acknowledge(self, records: int, first_offset: int, last_offset: int) -> None:
        """Count records that the broker has."""
        self.acknowledged += records
        if self.first_offset < 0 or first_offset < self.first_offset:
            self.first_offset = first_offset
        self.last_offset = max(self.last_offset, last_offset)


class Tally:
    """One :class:`PartitionTally` per partition that was written."""

    def __init__(self) -> None:
        self._found: dict[TopicPartition, PartitionTally] = {}

    def of(self, partition: TopicPartition) -> PartitionTally:
        """The partition's own, made when it is asked for first."""
        found = self._found.get(partition)
        if found is None:
            found = self._found[partition] = PartitionTally()
        return found

    @property
    def records(self) -> int:
        return sum(found.records for found in self._found.values())

    @property
    def acknowledged(self) -> int:
        return sum(found.acknowledged for found in self._found.values())

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._found)

    def writes(self) -> tuple[PartitionWrites, ...]:
        """As the manifest has them, sorted by topic and partition."""
        return tuple(
            PartitionWrites(
                partition.topic,
                partition.partition,
                found.records,
                found.bytes,
                found.first_offset,
                found.last_offset,
                found.digest.hexdigest(),
                found.oldest_timestamp_ms or 0,
            )
            for partition, found in sorted(self._found.items())
        )


# -- rows that cannot be written. Their content is not shown, it may be private ----------------------------------------


def unknown_topic(topic: str | None, target: WriteTarget) -> RecordError:
    """A row's topic is null, or not among the load's topics."""
    allowed = ", ".join(sorted(target.topics))
    if topic is None:
        return RecordError(
            "a row's topic column is null, and the load has no default topic",
            remedy=f"Fill the topic column, or set the option topic (this load may write to: {allowed})",
            transactional_id=str(target.transactional_id),
        )
    return RecordError(
        f"a row asks for topic {topic!r}, which is not among the load's topics: {allowed}",
        remedy="Add it to the load's topics, or correct the topic column",
        transactional_id=str(target.transactional_id),
    )


def unknown_partition(topic: str, partition: int, target: WriteTarget) -> RecordError:
    """A row's partition column is outside the topic."""
    return RecordError(
        f"a row asks for partition {partition} of topic {topic!r}, which has partitions "
        f"0 to {target.topics[topic].partitions - 1}",
        remedy="Correct the partition column, or leave it null to let the key choose",
        transactional_id=str(target.transactional_id),
    )


def already_prepared(target: WriteTarget) -> ProducerFencedError:
    """Rows that come behind ``prepare``: they would be in the transaction, and not in what was reported."""
    return ProducerFencedError(
        "the transaction is prepared, nothing can be written to it any more",
        remedy="Write all rows before prepare()",
        transactional_id=str(target.transactional_id),
    )


def no_header_name(target: WriteTarget) -> RecordError:
    """A header is null, or its name is."""
    return RecordError(
        "a row has a header without a key (null), Kafka has no such headers",
        remedy="Filter the headers column, or give each header a key",
        transactional_id=str(target.transactional_id),
    )


def beyond_librdkafka(what: str, target: WriteTarget) -> RecordError:
    """A row that librdkafka would change without a word.

    :param what: such as ``a header whose name has a zero byte, and would cut it there``.
    """
    return RecordError(
        f"a row has {what}: librdkafka cannot write it as it is",
        remedy="Use writer=arrow, or change the row",
        transactional_id=str(target.transactional_id),
    )


def bad_timestamp(topic: str, timestamp_ms: int, target: WriteTarget) -> RecordError:
    """A timestamp before 1970."""
    return RecordError(
        f"a row for topic {topic!r} has timestamp {timestamp_ms} ms, Kafka takes none before 1970",
        remedy="Correct the timestamp column, or leave it null for the moment of writing",
        transactional_id=str(target.transactional_id),
    )


def too_old(topic: str, timestamp_ms: int, target: WriteTarget) -> RecordError:
    """A timestamp that the topic's retention could delete before the record is committed."""
    oldest = target.topics[topic].oldest_timestamp_ms
    return RecordError(
        f"a row for topic {topic!r} has timestamp {timestamp_ms} ms, its retention.ms keeps records from {oldest} ms "
        "on: it could be deleted before the load is committed",
        remedy="Raise the topic's retention.ms, or leave the timestamp null for the moment of writing",
        transactional_id=str(target.transactional_id),
    )


def too_large(
    topic: str, partition: int | None, size: int, target: WriteTarget, key: bytes | None = None
) -> RecordError:
    """A record above its topic's limit.

    :param size: bytes of key, value and headers.
    :param key: shown as a hash only.
    """
    where = f"topic {topic!r}" + ("" if partition is None else f" partition {partition}")
    whose = "without key" if key is None else f"with key hash sha256:{hashlib.sha256(key).hexdigest()[:16]}"
    limits = target.topics.get(topic)
    limit = (
        f"takes at most {limits.max_message_bytes} bytes per batch (max.message.bytes)" if limits else "refuses it"
    )
    return RecordError(
        f"a record {whose} of {size} bytes (key, value and headers) is too large for {where}, which {limit}; "
        "each batch has about 100 bytes of its own",
        remedy="Make the record smaller, or raise the topic's max.message.bytes",
        transactional_id=str(target.transactional_id),
    )
