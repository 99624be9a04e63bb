"""What the driver asks the cluster before a task runs: is it there, do its topics exist, may we hold so long?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_kafka_eos.kafka.partitions import Partitions
from airflow_kafka_eos.kafka.preflight import check_broker, check_hold_time, check_topics
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.kafka.writer import TopicLimits
from airflow_kafka_eos.manifest import TopicInfo
from airflow_kafka_eos.spark.options import WriteOptions

_LIMIT = "max.message.bytes"
#: Kafka's own default of ``max.message.bytes``, where the login may not read topic settings.
_DEFAULT_LIMIT = 1_048_588


@dataclass(frozen=True)
class Checked:
    """The topics as prepare saw them, and what they take, by name."""

    topics: Mapping[str, TopicInfo]
    limits: Mapping[str, TopicLimits]


def check_cluster(settings: KafkaSettings, options: WriteOptions, *, timeout_s: float = 30) -> Checked:
    """Check the cluster.

    :param timeout_s: seconds for one question, its repetitions included.
    :raises TopicError: a topic does not exist.
    :raises ConfigurationError: the hold time is above the broker's ``transaction.max.timeout.ms``.
    :raises KafkaEosError: the broker is not reachable, refuses the login, or is too old.
    """
    with Wire(settings, timeout_s=timeout_s) as wire:
        check_broker(wire)
        partitions = Partitions(wire)
        check_hold_time(partitions, options.transaction_timeout_ms)
        topics = check_topics(partitions, options.topics)
        # empty where the login may not read it: the broker still refuses what is too large, only later
        config = partitions.topic_config(options.topics, [_LIMIT])
    return Checked(
        topics=dict(topics),
        limits={
            name: TopicLimits(info.partitions, int(config.get(name, {}).get(_LIMIT) or _DEFAULT_LIMIT))
            for name, info in topics.items()
        },
    )
