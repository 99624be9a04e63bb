"""A mistyped value is refused by name, value and what is near; only what librdkafka takes may fall back to it."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.librdkafka import LIBRDKAFKA_NUMBERS, OnlyLibrdkafkaError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.options import (
    LIBRDKAFKA_PARTITIONERS,
    PARTITIONERS,
    ProducerOptions,
    check_setting_values,
)
from airflow_kafka_eos.kafka.records.batch import COMPRESSIONS
from airflow_kafka_eos.kafka.records.compression import compressor


def settings(key: str, value: str, **more: str) -> KafkaSettings:
    named = {k.replace("_", "."): v for k, v in more.items()}
    return KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1", key: value} | named)


def taken_by_librdkafka(key: str, value: object) -> bool:
    try:
        Producer({key: str(value), "log_level": 0})
    except KafkaException:
        return False
    return True


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("compression.type", "zsdt", r"compression.type is 'zsdt'.*Did you mean zstd\? Use one of none, gzip"),
        ("compression.codec", "brotli", r"compression.type is 'brotli'.*Use one of none, gzip, snappy, lz4, zstd"),
        ("partitioner", "murmur2_randm", r"partitioner is 'murmur2_randm'.*Did you mean murmur2_random\?"),
        ("partitioner", "fnv1b", r"partitioner is 'fnv1b'.*Did you mean fnv1a\?.*writer=confluent fnv1a"),
        ("partitioner", "Murmur2", r"partitioner is 'Murmur2'.*Did you mean murmur2\?"),
        ("batch.size", "1k", r"batch.size is '1k'.*whole number from 1 to"),
        ("batch.size", "1_000", r"batch.size is '1_000'"),
        ("batch.size", "0", r"batch.size is '0'"),
        ("compression.level", "-2", r"compression.level is '-2'"),
        ("compression.level", "99", r"compression.level is '99'"),
        ("message.timeout.ms", "-1", r"message.timeout.ms is '-1'"),
        ("request.timeout.ms", "900001", r"request.timeout.ms is '900001'.*from 1 to 900000"),
        ("queue.buffering.max.kbytes", "64m", r"queue.buffering.max.kbytes is '64m'"),
    ],
)
def test_a_slip_in_what_the_arrow_writer_reads_is_no_reason_for_another_writer(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        ProducerOptions.from_settings(settings(key, value))
    assert not isinstance(caught.value, OnlyLibrdkafkaError)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("linger.ms", "soon", r"linger.ms is 'soon'.*from 0 to 900000"),
        ("linger.ms", "nan", r"linger.ms is 'nan'"),
        ("linger.ms", "-1", r"linger.ms is '-1'"),
        ("message.max.bytes", "1MB", r"message.max.bytes is '1MB'.*from 1000 to 1000000000"),
        ("socket.timeout.ms", "5", r"socket.timeout.ms is '5'.*from 10 to 300000"),
        ("queue.buffering.max.messages", "-1", r"max.messages is '-1'.*outside allowed range 0..2147483647"),
        ("queue.buffering.max.messages", "100k", r"max.messages is '100k'"),  # librdkafka takes it for 100
        ("socket.keepalive.enable", "maybe", r"keepalive.enable is 'maybe'.*true or false"),
        ("broker.address.family", "v5", r"broker.address.family is 'v5'"),
    ],
)
def test_what_the_arrow_writer_does_not_see_is_refused_all_the_same(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check_setting_values(settings(key, value))


@pytest.mark.parametrize(("key", "value"), [("acks", "al"), ("retries", "5x"), ("max.in.flight", "5x")])
def test_what_exactly_once_needs_is_refused_where_the_settings_are_read(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the Kafka setting (acks is 'al'|\S+ is not a whole number)"):
        settings(key, value)


def test_right_values_pass() -> None:
    for key, value in [
        ("linger.ms", "5.5"),
        ("client.id", "1a"),
        ("client.rack", "1a"),
        ("broker.version.fallback", "0.10.0.1"),
        ("queue.buffering.max.messages", "100"),
        ("message.max.bytes", "1000000"),
    ]:
        check_setting_values(settings(key, value))
    assert ProducerOptions.from_settings(settings("compression.type", "ZSTD")).compression == "zstd"


@pytest.mark.parametrize(
    ("key", "value"),
    [*(("partitioner", p) for p in LIBRDKAFKA_PARTITIONERS), ("message.timeout.ms", "0")],
)
def test_what_librdkafka_alone_has_is_told_apart(key: str, value: str) -> None:
    with pytest.raises(OnlyLibrdkafkaError, match=rf"{key} is '{value}'.*writer=confluent"):
        ProducerOptions.from_settings(settings(key, value))
    assert taken_by_librdkafka(key, value)


def test_levels_that_a_codec_lacks() -> None:
    with pytest.raises(OnlyLibrdkafkaError, match=r"compression.level is 12, gzip has 1 to 9"):
        compressor("gzip", 12)
    with pytest.raises(ConfigurationError, match=r"compression.level is 13, gzip has 1 to 9") as caught:
        compressor("gzip", 13)
    assert not isinstance(caught.value, OnlyLibrdkafkaError)
    assert ProducerOptions.from_settings(settings("compression.level", "22", compression_type="zstd"))


@pytest.mark.parametrize("key", LIBRDKAFKA_NUMBERS)
def test_the_ranges_are_librdkafkas(key: str) -> None:
    least, most = LIBRDKAFKA_NUMBERS[key]
    assert taken_by_librdkafka(key, least) and taken_by_librdkafka(key, most)
    assert not taken_by_librdkafka(key, least - 1) and not taken_by_librdkafka(key, most + 1)


def test_the_choices_are_librdkafkas() -> None:
    for key, values in (("compression.type", COMPRESSIONS), ("partitioner", PARTITIONERS + LIBRDKAFKA_PARTITIONERS)):
        assert all(taken_by_librdkafka(key, value) for value in values)
