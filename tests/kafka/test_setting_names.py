"""A misspelled setting is not seen by the arrow writer: records would go elsewhere, or uncompressed, without a word."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.options import check_setting_names


def settings(**given: object) -> KafkaSettings:
    named = {key.replace("_", "."): value for key, value in given.items()}
    return KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1", "sasl.password": "never shown"} | named)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("partitoner", "Did you mean partitioner"),
        ("compresion.type", "Did you mean compression.type"),
        ("frobnicate", "Use librdkafka's names, or remove it"),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_that_may_be_meant(name: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the Kafka setting {name} is unknown") as caught:
        check_setting_names(settings(**{name: "x"}))
    assert remedy in str(caught.value) and "never shown" not in str(caught.value)


def test_what_librdkafka_knows_is_let_through_whatever_its_value(capfd: pytest.CaptureFixture[str]) -> None:
    check_setting_names(
        settings(linger_ms="5", retries="3", queue_buffering_max_ms="5", metadata_max_age_ms="x", max_in_flight="2")
    )
    assert capfd.readouterr().err == ""  # no client of it that looks for brokers
