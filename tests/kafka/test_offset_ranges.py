"""Offsets as a cursor's positions, on a real broker (rule: range-has-an-order); and the reading of a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import airflow_kafka_eos.kafka.read_range as read_range_
from airflow_kafka_eos.errors import ConfigurationError, TopicError
from airflow_kafka_eos.kafka.admin.offset_ranges import bounds, check
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.read_range import read_range
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.acls import Right, allow_exactly
from tests.kafka.open_transactions import wait_until
from tests.secured import Secured

pytestmark = pytest.mark.broker


@pytest.fixture
def settings(kafka: LocalKafka) -> KafkaSettings:
    return KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def partitions(settings: KafkaSettings) -> Iterator[Partitions]:
    with Wire(settings) as wire:
        yield Partitions(wire)


@pytest.fixture
def admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def produce(kafka: LocalKafka, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition, headers=[("of", value[:1])])
    assert producer.flush(60) == 0


def of(position: Mapping[str, Any], topic: str) -> dict[str, int]:
    return dict(position["offsets"][topic])


def values(settings: KafkaSettings, since: Any, until: Any) -> list[str]:
    found = [v for batch in read_range(settings, since, until) for v in batch.column("value").to_pylist()]
    return sorted(v.decode() for v in found)


def test_a_range_goes_on_where_the_last_one_ended(
    kafka: LocalKafka, settings: KafkaSettings, partitions: Partitions, topic: Callable[..., str]
) -> None:
    name = topic(2)
    produce(kafka, name, "a", "b")
    since, until = bounds(partitions, [name], None)
    assert (of(since, name), of(until, name)) == ({"0": 0, "1": 0}, {"0": 2, "1": 0})
    produce(kafka, name, "c", partition=1)
    assert values(settings, since, until) == ["a", "b"]
    again, end = bounds(partitions, [name], until)
    assert (again, of(end, name)) == (until, {"0": 2, "1": 1})
    assert values(settings, again, end) == ["c"]
    assert values(settings, end, end) == []
    check(partitions, since, end)


def test_a_source_that_is_missing_is_not_to_be_created(partitions: Partitions) -> None:
    with pytest.raises(TopicError, match="nowhere does not exist") as caught:
        bounds(partitions, ["nowhere"], None)
    assert "--create" not in str(caught.value)


def test_a_range_ends_where_no_transaction_is_open(
    kafka: LocalKafka, settings: KafkaSettings, partitions: Partitions, topic: Callable[..., str]
) -> None:
    name = topic(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"of-{name}"})
    producer.init_transactions(60)
    for value, commits in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush(60)
        since, until = bounds(partitions, [name], None)
        assert value not in values(settings, since, until)
        producer.commit_transaction(60) if commits else producer.abort_transaction(60)
    wait_until(lambda: of(bounds(partitions, [name], None)[1], name) == {"0": 6}, "the last marker")
    since, until = bounds(partitions, [name], None)
    assert values(settings, since, until) == ["a", "c"], "behind the last record stands a marker"


def test_a_partition_that_was_added_begins_with_its_oldest_record(
    kafka: LocalKafka, settings: KafkaSettings, partitions: Partitions, topic: Callable[..., str], admin: AdminClient
) -> None:
    name = topic(1)
    produce(kafka, name, "a")
    _, until = bounds(partitions, [name], None)
    admin.create_partitions([NewPartitions(name, 2)])[name].result(60)
    wait_until(lambda: partitions.topic_info([name])[name].partitions == 2, "the new partition")
    produce(kafka, name, "b", "c", partition=1)
    since, end = bounds(partitions, [name], until)
    assert (of(since, name), of(end, name)) == ({"0": 1, "1": 0}, {"0": 1, "1": 2})
    assert values(settings, since, end) == ["b", "c"]


def test_what_was_deleted_of_a_partition_that_was_added_is_said(
    kafka: LocalKafka, partitions: Partitions, topic: Callable[..., str], admin: AdminClient
) -> None:
    name = topic(1)
    _, until = bounds(partitions, [name], None)
    admin.create_partitions([NewPartitions(name, 2)])[name].result(60)
    wait_until(lambda: partitions.topic_info([name])[name].partitions == 2, "the new partition")
    produce(kafka, name, "b", "c", partition=1)
    for future in admin.delete_records([TopicPartition(name, 1, 1)]).values():
        future.result(60)
    with pytest.raises(TopicError, match=f"does not name {name}-1, so its range begins at .* at 1: .* deleted"):
        bounds(partitions, [name], until)


def test_a_range_is_the_same_batches_whenever_it_is_read(
    kafka: LocalKafka, settings: KafkaSettings, partitions: Partitions, topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What was lost behind its decision is prepared again only where it is equal, row by row in their order."""
    monkeypatch.setattr(read_range_, "_RECORDS", 3)
    monkeypatch.setattr(read_range_, "_BYTES", 1000)
    name = topic(2)
    produce(kafka, name, *"abcd", "e" * 1000, "f")
    produce(kafka, name, *"uvwxyz", partition=1)
    since, until = bounds(partitions, [name], None)
    produce(kafka, name, "behind", partition=1)
    expected = [["a", "b", "c"], ["d", "e" * 1000], ["f"], ["u", "v", "w"], ["x", "y", "z"]]
    for _ in range(5):
        found = read_range(settings, since, until)
        assert [[v.decode() for v in batch.column("value").to_pylist()] for batch in found] == expected


def test_a_login_with_rights_on_the_topic_alone_reads_it(secured: Secured) -> None:
    """No group has a part in it, though the client wants to have one."""
    secured.plain.create_topic("cursor-source", partitions=1)
    produce(secured.plain, "cursor-source", "a")
    allow_exactly(secured.plain, "User:loader", [Right("READ", "Topic", "cursor-source")])
    try:
        login = secured.loader()
        with Wire(login) as wire:
            since, until = bounds(Partitions(wire), ["cursor-source"], None)
        assert values(login, since, until) == ["a"]
    finally:
        allow_exactly(secured.plain, "User:loader", ())


def test_records_that_were_deleted_before_they_were_read_are_said(
    kafka: LocalKafka, settings: KafkaSettings, partitions: Partitions, topic: Callable[..., str], admin: AdminClient
) -> None:
    name = topic(1)
    produce(kafka, name, *"abcd")
    since, until = bounds(partitions, [name], None)
    for future in admin.delete_records([TopicPartition(name, 0, 2)]).values():
        future.result(60)
    with pytest.raises(TopicError, match="deleted before they were read"):
        bounds(partitions, [name], since)
    with pytest.raises(TopicError, match="deleted before they were read"):
        check(partitions, since, until)
    with pytest.raises(TopicError, match="cannot be read as a whole"):
        values(settings, since, until)
    first, _ = bounds(partitions, [name], None)
    assert of(first, name) == {"0": 2}, "without a cursor it begins with what is there"


def test_a_topic_that_was_made_anew_is_said(
    kafka: LocalKafka, partitions: Partitions, topic: Callable[..., str], admin: AdminClient
) -> None:
    name = topic(1)
    produce(kafka, name, "a")
    since, until = bounds(partitions, [name], None)
    admin.delete_topics([name])[name].result(60)
    wait_until(lambda: name not in admin.list_topics(timeout=30).topics, "the end of the topic")
    kafka.create_topic(name, partitions=1)
    produce(kafka, name, *"xyz")
    for look in (lambda: bounds(partitions, [name], until), lambda: check(partitions, since, until)):
        with pytest.raises(TopicError, match="made anew"):
            look()


def test_a_log_that_has_become_shorter_is_said(
    kafka: LocalKafka, partitions: Partitions, topic: Callable[..., str]
) -> None:
    name = topic(1)
    produce(kafka, name, "a")
    with pytest.raises(TopicError, match="lost records"):
        bounds(partitions, [name], {"offsets": {name: {"0": 5}}})
    with pytest.raises(TopicError, match="lost records"):
        check(partitions, {"offsets": {name: {"0": 0}}}, {"offsets": {name: {"0": 5}}})
    with pytest.raises(TopicError, match="no partition 7"):
        bounds(partitions, [name], {"offsets": {name: {"0": 0, "7": 0}}})


def test_what_is_no_position_is_refused(partitions: Partitions, topic: Callable[..., str]) -> None:
    name = topic(1)
    for wrong in ({}, {"offsets": {name: {"0": -1}}}, {"offsets": {name: {"a": 1}}}, {"offsets": 1}, 7):
        with pytest.raises(ConfigurationError, match="no position"):
            bounds(partitions, [name], wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="does not read it"):
        bounds(partitions, [name], {"offsets": {"other": {"0": 0}}})
    with pytest.raises(ConfigurationError, match="not where it begins"):
        check(partitions, {"offsets": {name: {}}}, {"offsets": {name: {"0": 0}}})
