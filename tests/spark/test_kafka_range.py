"""Ranges of offsets by Spark's own Kafka source, as docs/cursors.md has it (rule: range-is-pinned)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from airflow_kafka_eos.kafka.admin.offset_ranges import bounds
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka.open_transactions import wait_until
from tests.kafka.test_offset_ranges import produce
from tests.spark.conftest import REPOSITORY, kafka_source_jars, spark_environment

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture
def partitions(kafka: LocalKafka) -> Iterator[Partitions]:
    with Wire(KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})) as wire:
        yield Partitions(wire)


def read(kafka: LocalKafka, since: Any, until: Any) -> Any:
    jars = ",".join(map(str, kafka_source_jars()))
    command = [sys.executable, "-m", "tests.spark.kafka_range_job", kafka.bootstrap_servers, jars]
    done = subprocess.run(
        [*command, json.dumps(since), json.dumps(until)], cwd=REPOSITORY, env=os.environ | spark_environment(),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_what_was_committed_is_read_and_a_partition_that_was_added_stops_nobody(
    kafka: LocalKafka, partitions: Partitions, topic: Callable[..., str]
) -> None:
    name = topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"of-{name}"})
    producer.init_transactions(60)
    for value, commits in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(60)
        producer.commit_transaction(60) if commits else producer.abort_transaction(60)

    def end() -> Any:
        return bounds(partitions, [name], None)[1]["offsets"][name]["0"]

    wait_until(lambda: end() == 6, "the last marker")
    since, until = bounds(partitions, [name], None)
    produce(kafka, name, "behind the range")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(60)
    wait_until(lambda: partitions.topic_info([name])[name].partitions == 2, "the new partition")
    assert read(kafka, since, until) == ["a", "c"]
