"""What the driver learns of the topics before a task runs."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import TwoPhaseCommit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.preflight import check_cluster
from tests.spark.test_two_phase import options


def test_what_a_topic_takes_and_keeps_is_known_before_it_is_written(
    kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic(1, config={"retention.ms": "3600000", "max.message.bytes": "2000"})
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    before = int(time.time() * 1000)
    limits = check_cluster(settings, options(TwoPhaseCommit.OFF, topics=(name,))).limits[name]
    assert limits.max_message_bytes == 2000
    # an hour back from when the load may still be undecided, a minute from now
    now = limits.oldest_timestamp_ms - 1 + 3_600_000 - 60_000
    assert before <= now <= int(time.time() * 1000)
