"""Rows that cannot be written, in words: the same for every writer. Their content is not shown, it may be private."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from airflow_kafka_eos.errors import ProducerFencedError, RecordError

if TYPE_CHECKING:
    from airflow_kafka_eos.kafka.producer.interface import WriteTarget


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
