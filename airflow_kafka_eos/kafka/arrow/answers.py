"""What a broker's answer to one record batch means. No I/O.

Codes: Kafka's protocol guide; which of them may be tried again: KIP-360, KIP-890 and the Java client's Sender.
"""

from __future__ import annotations

from enum import Enum

from airflow_kafka_eos.errors import (
    AccessError,
    KafkaEosError,
    ProducerFencedError,
    RecordError,
    TerminalError,
    TopicError,
)
from airflow_kafka_eos.kafka.retry import is_retriable, name_of
from airflow_kafka_eos.transaction import TopicPartition

UNKNOWN_TOPIC = frozenset({3, 100, 103})
CORRUPT_MESSAGE = 2
OUT_OF_ORDER_SEQUENCE = 45

#: The transaction is not open any more, or not this writer's.
NOT_OURS = frozenset({47, 48, 49, 90, 120})
_TOPIC_REFUSED = 29
_ID_REFUSED = 53
_REFUSED = frozenset({_TOPIC_REFUSED, 31, _ID_REFUSED})
_RECORD = {
    10: "the batch is larger than the topic's max.message.bytes, which was lowered since prepare began",
    32: "a timestamp is outside of what the topic takes (message.timestamp.before.max.ms, …after.max.ms)",
    44: "the topic's policy refuses it",
    76: "the broker or the topic does not take this compression.type",
    87: "the topic refuses a record: a compacted topic takes none without key",
}


class Answer(Enum):
    """What to do with a batch."""

    DONE = "acknowledged"
    AGAIN = "send the same batch again"
    #: a batch before it failed and is sent again: this one follows it
    BEHIND = "send it again behind the one before it"


def judge(
    code: int, *, base_offset: int, first_unacknowledged: bool, message: str | None, partition: TopicPartition, id: str
) -> Answer | KafkaEosError:
    """One batch's answer.

    :param first_unacknowledged: every batch of the partition before this one is acknowledged.
    :returns: what to do, or the error that ends the attempt.
    """
    if code == 0 and base_offset >= 0:
        return Answer.DONE
    if code == OUT_OF_ORDER_SEQUENCE and not first_unacknowledged:
        return Answer.BEHIND
    if code == CORRUPT_MESSAGE or is_retriable(code, metadata_may_lag=True):
        return Answer.AGAIN
    said = f"{name_of(code)}{f' ({message})' if message else ''}"
    where = f"writing to {partition}"
    if code in NOT_OURS:
        return ProducerFencedError(
            f"{where}: the transaction is not open any more as this writer began it: {said}",
            remedy="Someone ended it, or its timeout has passed; clear prepare to write again",
            transactional_id=id,
        )
    if code in _REFUSED:
        resources = {_TOPIC_REFUSED: f"Topic {partition.topic}", _ID_REFUSED: f"TransactionalId {id}"}
        resource = resources.get(code, "Cluster")
        return AccessError(
            f"{where}: the broker refused WRITE on {resource}: {said}",
            remedy=f"Grant the principal of the Kafka connection WRITE on {resource}",
            transactional_id=id,
        )
    if code in _RECORD:
        return RecordError(
            f"{where}: {_RECORD[code]}: {said}", remedy="Correct the rows, or the topic's settings", transactional_id=id
        )
    return TerminalError(
        f"{where}: the broker answered {said}, which sending again cannot mend",
        remedy="Clear prepare to write again in a new transaction; if it comes back, look into the broker's log",
        transactional_id=id,
    )


def gone(partition: TopicPartition, seconds: float, id: str) -> TopicError:
    """The brokers have not known the topic for too long."""
    return TopicError(
        f"writing to {partition}: no broker has known this partition, as it was when prepare began, for "
        f"{seconds:g} s: the topic was deleted or recreated",
        remedy="Create it again, or correct the load's topics, then clear prepare",
        transactional_id=id,
    )
