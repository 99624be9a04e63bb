"""What writes one transaction: the interface that every writer has, and what it is told about its target.

One writer makes at most one transaction (rule: one-init-per-transaction). It may end that transaction itself until it
has reported it (rule: writer-ends-only-unreported); from then on only a decision or an undecidable attempt does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.naming import AnyId
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState

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
    """

    transactional_id: AnyId
    topics: Mapping[str, TopicLimits]
    default_topic: str | None
    transaction_timeout_ms: int
    deadline_ms: int
    two_phase_commit: bool = False
    shared: PreparedTxnState | None = None


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
