"""The whole way of a write, on three brokers, of the newer contestants; and that a wrong one is seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from airflow_kafka_eos.sandbox.jars import cache_root
from bench import proc
from bench.broker import Broker
from bench.cases import CASES, CONTESTANTS, ZSTD, Contestant
from bench.data import Dataset, dataset
from bench.ending import ending
from bench.host import Host
from bench.logcheck import NotWhatWasWritten
from bench.measure import Stage

PARTITIONS, RECORDS = 16, 3000
#: Content is read back in warm-ups.
WARM_UP = -1

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stage")


@pytest.fixture(scope="module")
def stage(folder: Path) -> Iterator[Stage]:
    root = cache_root() / "bench"
    root.mkdir(parents=True, exist_ok=True)
    with Broker(folder / "broker", brokers=3) as broker:
        yield Stage(broker, root, folder, PARTITIONS)


@pytest.fixture(scope="module")
def records(folder: Path) -> Dataset:
    return dataset(folder, "small", RECORDS, 2, PARTITIONS, ZSTD)


@pytest.fixture(scope="module")
def spark(stage: Stage, records: Dataset) -> Iterator[Host]:
    with stage.start("spark") as host:
        stage.load(host, "spark", records)
        yield host


def named(key: str) -> Contestant:
    return next(c for c in CONTESTANTS if c.key == key)


@pytest.mark.parametrize("key", ["spark-sink", "arrow-task-keyless", "arrow-load-keyless", "arrow-load"])
def test_a_write_arrives_whole(stage: Stage, spark: Host, records: Dataset, key: str) -> None:
    run = stage.write(spark, named(key), CASES[1], records, WARM_UP)
    assert run.transactions == {"spark-sink": 0, "arrow-task-keyless": 2}.get(key, 1)
    assert run.bytes == (records if named(key).keyed else records.without_keys()).bytes
    assert not list(stage.broker.folder.glob("node-*/data/bench-*"))


def test_records_in_another_partition_are_seen_outside_transactions_too(
    stage: Stage, spark: Host, records: Dataset
) -> None:
    elsewhere = replace(records, per_partition=tuple(reversed(records.per_partition or ())))
    with pytest.raises(NotWhatWasWritten, match="were to be outside transactions"):
        stage.write(spark, named("spark-sink"), CASES[0], elsewhere, 1)


def test_a_topic_has_three_copies_and_needs_two(stage: Stage) -> None:
    topic = stage.broker.create_topic(PARTITIONS)
    try:
        admin = AdminClient({"bootstrap.servers": stage.broker.bootstrap_servers})
        placed = admin.list_topics(topic).topics[topic].partitions.values()
        assert [len(partition.replicas) for partition in placed] == [3] * PARTITIONS
        assert len({partition.leader for partition in placed}) == 3
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        assert admin.describe_configs([asked])[asked].result()["min.insync.replicas"].value == "2"
    finally:
        stage.broker.delete_topic(topic)


def test_all_brokers_cpu_is_counted(stage: Stage) -> None:
    nodes = [proc.find_child(str(stage.broker.folder / f"node-{node}" / "server.properties")) for node in (1, 2, 3)]
    assert stage.broker.cpu_seconds >= sum(proc.CpuMeter(pid).seconds for pid in nodes) - 1


def test_transactions_are_prepared_and_ended_on_their_leaders(stage: Stage) -> None:
    title, figures = ending(stage.broker, 8, 1, lambda line: None)
    assert title == "Ending 8 prepared transactions"
    assert [what for what, _ in figures] == ["one by one, s", "as the package ends them, s", "times as fast"]


def test_what_counts_is_what_the_leaders_have(stage: Stage) -> None:
    topic = stage.broker.create_topic(3)
    stage.broker.kafka.kill(1)
    try:
        producer = Producer({"bootstrap.servers": stage.broker.bootstrap_servers, "acks": "all"})
        for partition in range(3):
            producer.produce(topic, b"value", partition=partition)
        assert producer.flush(60) == 0
        assert [found.plain for found in stage.broker.scan(topic, 3)] == [1, 1, 1]
    finally:
        stage.broker.kafka.restart(1)
        stage.broker.delete_topic(topic)
