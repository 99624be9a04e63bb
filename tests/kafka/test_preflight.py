"""Which records a topic still keeps when they become visible."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.kafka.admin.preflight import fits_retention, oldest_kept_ms


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
