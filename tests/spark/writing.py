"""A write, its error, and what a reader sees of it."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assignment

from airflow_kafka_eos.spark import write as ours
from airflow_kafka_eos.spark.errortext import own_error
from airflow_kafka_eos.spark.options import WriteOptions


def write(frame, options):
    ours.write(frame, WriteOptions.parse(options))


def by_data_source(frame, options, mode="append"):
    frame.write.format("kafka_eos").options(**options).mode(mode).save()


def failure(frame, options, write=write):
    """The error of this package that a failing write shows."""
    with pytest.raises(Exception) as caught:
        write(frame, options)
    found = own_error(caught.value)
    assert found is not None, str(caught.value)
    return found


def visible(kafka, topic, partitions, count, isolation="read_committed"):
    """Records that a reader sees, as (key, value), until there are ``count``."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "isolation.level": isolation}
    )
    consumer.assign([Assignment(topic, p, 0) for p in range(partitions)])
    found, end = [], time.monotonic() + 20
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append((message.key(), message.value()))
    consumer.close()
    return found
