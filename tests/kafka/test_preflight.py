"""A broker too old to be started here: its ApiVersions answer, as kafka-python knows it, is what is looked at."""

from __future__ import annotations

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from airflow_kafka_eos.errors import BrokerTooOldError
from airflow_kafka_eos.kafka.admin.preflight import NEEDED, check_offered, fits_retention, oldest_kept_ms
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka.open_transactions import settings_of

WHERE = "b1:9092"


def test_kafka_2_8_is_refused_with_all_that_it_lacks() -> None:
    with pytest.raises(BrokerTooOldError) as caught:
        check_offered(BROKER_API_VERSIONS[2, 8], WHERE)
    text = str(caught.value)
    assert text.startswith(f"the brokers at {WHERE} lack what exactly-once needs: Fetch")
    for lacked in (
        "Fetch (reading end markers by topic id) goes up to v12, v13 is needed",
        "FindCoordinator (finding many coordinators at once) goes up to v3, v4 is needed",
        "DescribeTransactions (confirming what is prepared) is missing",
        "ListTransactions (finding lingering transactions) is missing",
    ):
        assert lacked in text
    assert "Kafka 3.9 or newer is needed" in text
    assert "EndTxn" not in text


@pytest.mark.parametrize("version", [(3, 9), (4, 0), (4, 1)])
def test_what_we_say_is_new_enough_is(version: tuple[int, int]) -> None:
    check_offered(BROKER_API_VERSIONS[version], WHERE)


@pytest.mark.parametrize("key", NEEDED)
def test_any_one_request_missing_or_too_old_is_named(key: int) -> None:
    name, lowest, _ = NEEDED[key]
    offered = dict(BROKER_API_VERSIONS[4, 1])
    if lowest:
        offered[key] = (0, lowest - 1)
        with pytest.raises(BrokerTooOldError, match=rf"{name} .*goes up to v{lowest - 1}, v{lowest} is needed"):
            check_offered(offered, WHERE)
    del offered[key]
    with pytest.raises(BrokerTooOldError, match=rf"{name} .*is missing"):
        check_offered(offered, WHERE)


def test_a_broker_of_today_says_more_than_the_table(kafka: LocalKafka) -> None:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        check_offered(wire.api_versions(), kafka.bootstrap_servers)


@pytest.mark.parametrize(
    ("config", "oldest"),
    [
        ({"retention.ms": "1000"}, 9001),
        ({"retention.ms": "1000", "cleanup.policy": "compact,delete"}, 9001),
        ({"retention.ms": "1000", "cleanup.policy": "compact"}, 0),
        ({"retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}, 0),
        ({"retention.ms": "-1"}, 0),
        ({"retention.ms": "999999"}, 0),
        ({}, 0),
    ],
)
def test_the_oldest_record_that_is_still_there_when_it_becomes_visible(config: dict[str, str], oldest: int) -> None:
    # Kafka deletes what is older than retention.ms, by the record's own time
    assert oldest_kept_ms(config, 10_000) == oldest
    assert fits_retention(config, oldest, 10_000)
    assert not fits_retention(config, oldest - 1, 10_000)
