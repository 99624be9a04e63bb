"""What a broker's answer to a batch means, and which settings the Arrow writer follows. No broker needed."""

from __future__ import annotations

import kafka.errors
import pytest

from airflow_kafka_eos.errors import (
    AccessError,
    ConfigurationError,
    KafkaEosError,
    ProducerFencedError,
    RecordError,
    TerminalError,
    TopicError,
)
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.arrow.sender import Answer, gone, judge
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.transaction import TopicPartition

TP = TopicPartition("orders", 3)


def judged(
    code: int, *, base_offset: int = -1, first: bool = True, message: str | None = None
) -> Answer | KafkaEosError:
    return judge(
        code, base_offset=base_offset, first_unacknowledged=first, message=message, partition=TP, id="an id"
    )


def test_only_an_offset_is_an_acknowledgement() -> None:
    assert judged(0, base_offset=0) is Answer.DONE
    assert judged(0, base_offset=5, first=False) is Answer.DONE
    # no answer for this partition, or one without an offset: the batch may not be there
    assert isinstance(judged(0), TerminalError)
    assert judged(-1) is Answer.AGAIN


# CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT, BROKER_ and
# REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS, _NOT_AVAILABLE, NOT_COORDINATOR,
# NOT_ENOUGH_REPLICAS (_AFTER_APPEND), CONCURRENT_TRANSACTIONS, COORDINATOR_FENCED, STORAGE_ERROR, leader epochs,
# THROTTLING_QUOTA_EXCEEDED, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID
AGAIN = {-1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 51, 52, 56, 74, 75, 78, 89, 100, 103}
FENCED = {47, 48, 49, 90, 120}
ACCESS = {29, 31, 53}
RECORD = {10, 32, 44, 76, 87}


@pytest.mark.parametrize("code", range(-1, 134))
@pytest.mark.parametrize("first", [True, False])
def test_each_code(code: int, first: bool) -> None:
    found = judged(code, first=first)
    if code in AGAIN:
        assert found is Answer.AGAIN
        return
    if code == 45 and not first:
        assert found is Answer.BEHIND
        return
    wanted = (
        ProducerFencedError if code in FENCED
        else AccessError if code in ACCESS
        else RecordError if code in RECORD
        else TerminalError
    )  # fmt: skip
    assert type(found) is wanted
    assert "orders-3" in str(found) and f"({code})" in str(found) and "an id" in str(found)
    assert found.remedy


def test_a_gap_behind_a_batch_that_is_sent_again_is_no_error_but_one_of_its_own_is() -> None:
    # the broker lost records it had acknowledged, or another producer wrote with this identity
    assert judged(45, first=False) is Answer.BEHIND
    assert isinstance(judged(45, first=True), TerminalError)


def test_the_brokers_own_word_is_shown() -> None:
    assert "Timestamp 5 of message with offset 0" in str(judged(32, message="Timestamp 5 of message with offset 0"))


def test_every_retriable_code_of_kafka_python_that_produce_can_answer_is_tried_again() -> None:
    # its list is the protocol guide's; those of fetch, share groups, controllers and elections are not produce's
    others = {41, 70, 71, 72, 80, 83, 84, 88, 106, 122, 123}
    for name in dir(kafka.errors):
        error = getattr(kafka.errors, name)
        code = getattr(error, "errno", None)
        if isinstance(code, int) and code > 0 and getattr(error, "retriable", False) and code not in others:
            assert code in AGAIN, (name, code)


def test_a_partition_that_is_gone_is_a_topic_error() -> None:
    error = gone(TP, 10, "an id")
    assert isinstance(error, TopicError) and "orders-3" in str(error) and "10 s" in str(error)


# -- settings ------------------------------------------------------------------------------------------------------


def options(**changes: object) -> ProducerOptions:
    given = {k.replace("_", "."): v for k, v in changes.items()}
    return ProducerOptions.from_settings(
        KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1", **given})
    )


def test_settings_are_librdkafkas_and_so_are_their_other_names() -> None:
    assert options() == ProducerOptions()
    found = options(
        compression_codec="zstd",
        compression_level="9",
        partitioner="consistent",
        batch_size=5000,
        max_in_flight="3",
        queue_buffering_max_kbytes=100,
        message_timeout_ms=5000,
        request_timeout_ms=700,
    )
    assert found == ProducerOptions("zstd", 9, "consistent", 5000, 3, 102_400, 5.0, 0.7)
    assert options(delivery_timeout_ms=7000).delivery_timeout_s == 7.0
    assert options(compression_level=-1).compression_level is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"compression_type": "gziip"}, "compression.type is 'gziip'.*Did you mean gzip"),
        ({"compression_type": "brotli"}, "compression.type is 'brotli'.*none, gzip, snappy, lz4, zstd"),
        ({"partitioner": "murmur2_randm"}, "partitioner is 'murmur2_randm'.*Did you mean murmur2_random"),
        ({"partitioner": "fnv1a"}, "partitioner is 'fnv1a'.*writer=confluent"),
        ({"batch_size": "many"}, "batch.size is 'many'.*whole number from 1 to"),
        ({"batch_size": 0}, "batch.size is '0'"),
        ({"queue_buffering_max_kbytes": -5}, "queue.buffering.max.kbytes is '-5'"),
        ({"message_timeout_ms": 0}, "message.timeout.ms is '0'.*from 1 to"),
        ({"compression_level": "high"}, "compression.level is 'high'"),
        # 5 is what a broker can put in order
        ({"max_in_flight": 6}, "max.in.flight.requests.per.connection is not in 1..5"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        options(**given)
