"""The contract of writers, for each one, on a real broker: what it says when it cannot, and that nothing stays open."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from airflow_kafka_eos.errors import (
    AccessError,
    BrokerUnavailableError,
    ConfigurationError,
    ProducerFencedError,
    RecordError,
    TopicError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.arrow.writer import ArrowWriter
from airflow_kafka_eos.kafka.producer.confluent import ConfluentWriter
from airflow_kafka_eos.kafka.producer.interface import TopicLimits
from airflow_kafka_eos.kafka.producer.writers import abort_reported, describe_once, make_writer
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.kafka.arrow_support import batch
from tests.kafka.writers_support import (
    NewWriter,
    add_partitions,
    an_id,
    delete_topic,
    granted,
    is_open,
    settings_of,
    take_over,
    target_of,
)
from tests.secured import PASSWORD, Secured

pytestmark = pytest.mark.broker


def bad_rows(name: str) -> dict[str, tuple[dict[str, TopicLimits], dict[str, list[Any]], str]]:
    small = {name: TopicLimits(2, 2000)}
    nameless = [[{"key": None, "value": b""}]]
    return {
        "unknown partition": (small, {"partition": [7]}, f"partition 7 of topic '{name}', which has partitions 0 to 1"),
        "negative partition": (small, {"partition": [-1]}, "partition -1 of topic"),
        "too large alone": (
            small,
            {"value": [b"v" * 3000], "key": [b"secret"]},
            # sha256 of b"secret" begins so
            f"with key hash sha256:2bb80d537b1da3e3 of 3006 bytes (key, value and headers) is too large for topic "
            f"'{name}'",
        ),
        "too large by its headers": (small, {"headers": [[{"key": "h", "value": b"v" * 3000}]]}, "3002 bytes"),
        # fits by its content, not with what Kafka adds
        "too large with its frame": (small, {"value": [b"v" * 1995]}, "takes at most 2000 bytes"),
        "foreign topic": (small, {"topic": ["other"]}, f"'other', which is not among the load's topics: {name}"),
        "empty topic": (small, {"topic": [""]}, "asks for topic '', which is not among the load's topics"),
        "null topic": (small, {"topic": [None]}, "topic column is null"),
        "header without key": (small, {"headers": nameless}, "header without a key"),
        "null header": (small, {"headers": [[None]]}, "header without a key"),
        "before 1970": (small, {"timestamp": [-1]}, f"topic '{name}' has timestamp -1 ms"),
        "older than retention": (
            {name: TopicLimits(2, 2000, oldest_timestamp_ms=1_600_000_000_000)},
            {"timestamp": [1_599_999_999_999]},
            f"topic '{name}' has timestamp 1599999999999 ms, its retention.ms keeps records from 1600000000000 ms on",
        ),
        # the topic's own limit: only the broker knows it
        "far future": (small, {"timestamp": [4_102_444_800_000]}, "INVALID_TIMESTAMP"),
    }


@pytest.mark.parametrize("case", bad_rows("x"))
def test_a_bad_row_is_named_and_nothing_stays_open(
    case: str, topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    name = topic(2, config={"max.message.bytes": "2000", "message.timestamp.after.max.ms": "3600000"})
    topics, columns, message = bad_rows(name)[case]
    without_default = {"default_topic": None} if case == "null topic" else {}
    writer, transactional_id = new_writer(topics, **without_default)
    writer.open()
    writer.write(batch(topic=[name], value=[b"good"]))
    with pytest.raises(RecordError) as caught:
        writer.write(batch(**({"value": [b"v"]} | columns)))
        writer.prepare()
    assert message in str(caught.value), str(caught.value)
    assert caught.value.remedy and str(transactional_id) in str(caught.value)
    assert "vvv" not in str(caught.value) and "secret" not in str(caught.value)  # content may be private
    writer.abort()
    assert not is_open(settings, transactional_id)


def test_a_record_without_a_key_is_called_so(topic: Callable[..., str], new_writer: NewWriter) -> None:
    name = topic(1)
    writer, _ = new_writer({name: TopicLimits(1, 2000)})
    writer.open()
    with pytest.raises(RecordError, match="a record without key of 3000 bytes"):
        writer.write(batch(value=[b"v" * 3000]))


def test_a_batch_limit_that_was_lowered_since_is_the_brokers_word(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(1, config={"max.message.bytes": "2000"})
    writer, _ = new_writer({name: TopicLimits(1, 50_000)})
    writer.open()
    with pytest.raises(RecordError, match=r"max\.message\.bytes"):
        writer.write(batch(value=[b"v" * 5000]))
        writer.prepare()


def test_a_topic_that_takes_no_record_without_a_key_says_so(
    topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(1, config={"cleanup.policy": "compact"})
    writer, _ = new_writer({name: 1})
    writer.open()
    with pytest.raises(RecordError, match="compacted topic takes no"):
        writer.write(batch(value=[b"v"]))
        writer.prepare()


def test_a_partition_that_is_only_believed_to_be_there_is_a_topic_error(
    topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(2)
    writer, _ = new_writer({name: 9})
    writer.open()
    with pytest.raises(TopicError, match=name):
        writer.write(batch(value=[b"v"], partition=[7]))
        writer.prepare()


def test_a_topic_that_is_deleted_during_the_write_is_said_so(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    name = topic(1)
    writer, transactional_id = new_writer({name: 1})
    writer.open()
    writer.write(batch(value=[b"v" * 900_000]))
    delete_topic(kafka.bootstrap_servers, name)
    with pytest.raises(TopicError, match=name):
        writer.write(batch(value=[b"v" * 900_000]))
        writer.prepare()
    writer.abort()
    assert not is_open(settings, transactional_id)


def test_a_topic_that_gets_partitions_during_the_write_is_not_reported(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    # the keys' next records would go elsewhere: their order would be lost
    name = topic(1)
    writer, transactional_id = new_writer({name: 1})
    writer.open()
    writer.write(batch(value=[b"v"]))
    add_partitions(kafka.bootstrap_servers, name, 3)
    with pytest.raises(TopicError, match=f"'{name}' has 3 partitions, it had 1"):
        writer.prepare()
    writer.abort()
    assert not is_open(settings, transactional_id)


def test_a_topic_that_is_made_anew_during_the_write_is_not_reported(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    name = topic(1)
    with Wire(settings) as wire:
        first = Partitions(wire).topic_info([name])[name].topic_id
    writer, _ = new_writer({name: TopicLimits(1, 10**6, first)})
    writer.open()
    writer.write(batch(value=[b"v"]))
    delete_topic(kafka.bootstrap_servers, name)
    kafka.create_topic(name)
    with pytest.raises(TopicError, match=name):
        writer.prepare()


def test_past_its_deadline_it_opens_nothing(
    topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    # rule: writers-have-a-deadline
    name = topic(1)
    writer, transactional_id = new_writer({name: 1}, deadline_ms=int(time.time() * 1000) - 1)
    with pytest.raises(UndecidableError, match="deadline"):
        writer.open()
    assert describe_once(settings, transactional_id) is None


def test_a_transaction_that_someone_took_over_is_not_reported(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(1)
    writer, transactional_id = new_writer({name: 1})
    writer.open()
    writer.write(batch(value=[b"v"]))
    zombie = take_over(kafka.bootstrap_servers, transactional_id)
    with pytest.raises(ProducerFencedError, match=r"FENCED|INVALID_PRODUCER_EPOCH|INVALID_TXN_STATE"):
        writer.write(batch(value=[b"v"]))
        writer.prepare()
    del zombie


def test_a_takeover_that_librdkafka_met_behind_the_writers_back_is_told_as_one(
    kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    """It refuses the next row with "fatal error" alone: no delivery report has told yet why."""
    name, transactional_id = topic(1), an_id("met behind its back")
    slow = settings_of(kafka.bootstrap_servers, linger_ms=1500)
    writer = make_writer("confluent", slow, target_of(transactional_id, {name: 1}))
    assert isinstance(writer, ConfluentWriter)
    writer.open()
    writer.write(batch(value=[b"v"]))
    zombie = take_over(kafka.bootstrap_servers, transactional_id)
    end = time.monotonic() + 30
    while writer._why_given_up("waiting") is None and time.monotonic() < end:  # asks, and serves no report
        time.sleep(0.1)
    with pytest.raises(ProducerFencedError, match=r"FENCED|INVALID_PRODUCER_EPOCH|INVALID_TXN_STATE"):
        writer.write(batch(value=[b"v"]))
    writer.close()
    del zombie


@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_fenced_librdkafka_is_dropped_with_nothing_in_it(
    kafka: LocalKafka, topic: Callable[..., str], end: str
) -> None:
    """librdkafka 2.16 corrupts its heap otherwise; the process may die much later, of something else."""
    name, transactional_id = topic(1), an_id(f"dropped by {end}")
    slow = settings_of(kafka.bootstrap_servers, linger_ms=60_000)
    writer = make_writer("confluent", slow, target_of(transactional_id, {name: 1}))
    writer.open()
    writer.write(batch(value=[b"v"] * 1000))
    zombie = take_over(kafka.bootstrap_servers, transactional_id)
    assert isinstance(writer, ConfluentWriter)
    producer = writer._producer
    assert producer is not None and len(producer) >= 1000
    getattr(writer, end)()
    assert len(producer) < 100  # statistics may come in at any time
    del zombie


def test_a_transaction_that_was_ended_is_not_reported(
    kind: str, topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Describe confirms; without asking it, an aborted transaction would be reported as prepared
    name = topic(1)
    writer, transactional_id = new_writer({name: 1})
    prepared = PreparedTransaction(str(transactional_id), writer.open())
    writer.write(batch(value=[b"v"]))

    def behind_the_last_acknowledgement(call: Callable[..., Any]) -> Callable[..., Any]:
        def ending(*arguments: Any) -> Any:
            found = call(*arguments)
            if not found:
                abort_reported(settings, AttemptRef(transactional_id.load, "00000000aa", 1), [prepared])
            return found

        return ending

    if kind == "arrow":
        assert isinstance(writer, ArrowWriter) and writer._sender is not None
        monkeypatch.setattr(writer._sender, "flush", behind_the_last_acknowledgement(writer._sender.flush))
    else:
        with Wire(settings) as wire:
            topics = Partitions(wire).topic_info([name])
        monkeypatch.setattr(writer, "_topics_now", lambda: behind_the_last_acknowledgement(dict)() or topics)
    with pytest.raises(ProducerFencedError, match="coordinator shows"):
        writer.prepare()


def test_a_transaction_that_its_timeout_ended_is_not_reported(
    topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    name = topic(1)
    writer, transactional_id = new_writer({name: 1}, transaction_timeout_ms=1000)
    writer.open()
    with pytest.raises(ProducerFencedError):  # on a machine that stalls here the first one may be late already
        writer.write(batch(value=[b"v" * 1_000_000]))
        writer.write(batch(value=[b"v" * 1_000_000]))
        time.sleep(1)
        assert not is_open(settings, transactional_id)
        writer.write(batch(value=[b"v" * 1_000_000]))
        writer.prepare()


def test_a_hold_time_above_the_brokers_is_refused(topic: Callable[..., str], new_writer: NewWriter) -> None:
    name = topic(1)
    writer, _ = new_writer({name: 1}, transaction_timeout_ms=2_000_000_000)
    with pytest.raises(ConfigurationError, match=r"INVALID_TRANSACTION_TIMEOUT|transaction\.max\.timeout\.ms"):
        writer.open()


def test_a_broker_that_is_not_there_is_said_so(kind: str) -> None:
    settings = settings_of("127.0.0.1:1")
    target = target_of(an_id("nobody"), {"t": 1}, deadline_ms=int(time.time() * 1000) + 2000)
    writer = make_writer(kind, settings, target)
    with pytest.raises(BrokerUnavailableError):
        writer.open()
    writer.abort()
    writer.close()


@pytest.mark.parametrize("case", ["nothing", "only the transaction"])
def test_what_one_may_not_write_is_said_so(kind: str, case: str, secured: Secured) -> None:
    transactional_id = an_id(f"forbidden-{kind}-{case.partition(' ')[0]}")
    writer = make_writer(kind, secured.login(), target_of(transactional_id, {"orders": 1}))
    rights = [
        (ResourceType.TRANSACTIONAL_ID, str(transactional_id), AclOperation.WRITE),
        (ResourceType.TRANSACTIONAL_ID, str(transactional_id), AclOperation.DESCRIBE),
        (ResourceType.TOPIC, "orders", AclOperation.DESCRIBE),
    ]
    with granted(secured.plain.bootstrap_servers, "User:alice", *(rights if case != "nothing" else ())):
        with pytest.raises(AccessError) as caught:
            writer.open()
            writer.write(batch(value=[b"v"]))
            writer.prepare()
        writer.abort()
        writer.close()
    assert PASSWORD not in str(caught.value)
    assert case == "nothing" or "orders" in str(caught.value)
