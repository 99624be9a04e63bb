"""What holds for the confluent writer alone; the contract of both writers is in test_writers.py. No broker needed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.producer.confluent import _configuration, rows
from airflow_kafka_eos.kafka.producer.interface import TopicLimits
from tests.kafka.arrow_support import batch
from tests.kafka.writers_support import an_id, settings_of, target_of

TARGET = target_of(an_id("x"), {"t": 3})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        # both are taken by librdkafka, and something else is written
        ({"timestamp": [0]}, r"timestamp 0 \(1970-01-01\).*writer=arrow"),
        ({"headers": [[{"key": "a\0b", "value": b""}]]}, "zero byte in its name.*writer=arrow"),
    ],
)
def test_what_librdkafka_would_change_is_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        list(rows(batch(value=[b"v"], **columns), TARGET))


def test_no_time_is_the_moment_of_writing() -> None:
    assert [r.timestamp_ms for r in rows(batch(value=[b"v"] * 2, timestamp=[None, 5]), TARGET)] == [0, 5]


@pytest.mark.parametrize(("given", "wanted"), [({}, 1900), ({"batch_size": 500}, 500), ({"batch_size": 50_000}, 1900)])
def test_batches_fit_the_strictest_topic_whatever_the_user_asks_for(
    given: dict[str, int], wanted: int
) -> None:
    target = target_of(an_id("x"), {"t": 3, "small": TopicLimits(1, 2000)})
    assert _configuration(settings_of("127.0.0.1:1", **given), target)["batch.size"] == str(wanted)
