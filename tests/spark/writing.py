"""A write, its error, and what a reader sees of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assignment
from pyspark.sql import DataFrame

from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark import write as ours
from airflow_kafka_eos.spark.errortext import own_error
from airflow_kafka_eos.spark.options import WriteOptions

#: a frame, and the options of its ``df.write``
Write = Callable[[DataFrame, Mapping[str, str]], None]


def write(frame: DataFrame, options: Mapping[str, str]) -> None:
    ours.write(frame, WriteOptions.parse(options))


def id_of(text: str) -> TransactionalId:
    found = TransactionalId.parse(text)
    assert found is not None, text
    return found


def by_data_source(frame: DataFrame, options: Mapping[str, str], mode: str = "append") -> None:
    frame.write.format("kafka_eos").options(**options).mode(mode).save()


def failure(frame: DataFrame, options: Mapping[str, str], write: Write = write) -> str:
    """The error of this package that a failing write shows."""
    with pytest.raises(Exception) as caught:
        write(frame, options)
    found = own_error(caught.value)
    assert found is not None, str(caught.value)
    return found


def visible(
    kafka: LocalKafka, topic: str, partitions: int, count: int, isolation: str = "read_committed"
) -> list[tuple[Any, Any]]:
    """Records that a reader sees, as (key, value), until there are ``count``."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "isolation.level": isolation}
    )
    consumer.assign([Assignment(topic, p, 0) for p in range(partitions)])
    found: list[tuple[Any, Any]] = []  # bytes or None; sorted() takes no None
    end = time.monotonic() + 20
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append((message.key(), message.value()))
    consumer.close()
    return found
