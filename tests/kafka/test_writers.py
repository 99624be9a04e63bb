"""The contract of writers, for each one, on a real broker: what it leaves behind, and what it says when it cannot."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_eos.errors import ProducerFencedError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.interface import TopicLimits
from airflow_kafka_eos.kafka.producer.writers import describe_once, make_writer
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka.arrow_support import batch
from tests.kafka.writers_support import (
    KINDS,
    NewWriter,
    an_id,
    consume,
    end,
    is_open,
    settings_of,
    target_of,
    writes_of,
)

pytestmark = pytest.mark.broker


def test_what_it_reports_is_what_is_in_the_log(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(3)
    writer, _ = new_writer({name: 3})
    writer.open()
    keys = [None, b"", *(b"%d" % i for i in range(498))]
    values = [b"v%d" % i if i % 7 else None for i in range(500)]  # null values are tombstones
    headers = [[{"key": "h", "value": b"%d" % i}, {"key": "h", "value": None}] if i % 3 else None for i in range(500)]
    for start in range(0, 500, 100):
        part = slice(start, start + 100)
        writer.write(batch(key=keys[part], value=values[part], headers=headers[part]))
    _, writes = writer.prepare()
    writer.close()
    records = consume(kafka.bootstrap_servers, name, 3, 500)
    assert writes == writes_of(name, records)
    wanted = [
        (k, v, (("h", b"%d" % i), ("h", None)) if i % 3 else ())
        for i, (k, v) in enumerate(zip(keys, values, strict=True))
    ]
    assert sorted(map(repr, ((r.key, r.value, r.headers) for r in records))) == sorted(map(repr, wanted))


def test_times_are_those_of_the_rows_or_of_writing(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(1)
    writer, _ = new_writer({name: 1})
    before = int(time.time() * 1000)
    writer.open()
    given = [1, 1_356_998_400_000, None, before + 1000]  # back and forth
    writer.write(batch(value=[b"v"] * 4, timestamp=given))
    writer.write(batch(value=[b"v"]))
    writer.prepare()
    after = int(time.time() * 1000)
    found = [r.timestamp for r in consume(kafka.bootstrap_servers, name, 1, 5)]
    assert (found[0], found[1], found[3]) == (given[0], given[1], given[3])
    assert before <= found[2] <= after and before <= found[4] <= after


def test_a_prepared_transaction_stays_open_when_the_writer_is_gone(
    topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    # librdkafka's Producer.close() would abort it
    name = topic(2)
    writer, transactional_id = new_writer({name: 2})
    opened = writer.open()
    writer.write(batch(value=[b"a", b"b"], partition=[0, 1]))
    prepared, writes = writer.prepare()
    writer.close()
    del writer
    gc.collect()
    seen = describe_once(settings, transactional_id)
    assert seen is not None
    assert seen.coordinator_state.value == "Ongoing"
    assert prepared.transactional_id == str(transactional_id)
    assert prepared.state == opened == seen.state  # what InitProducerId was answered (rule: recorded-identity)
    assert seen.partitions == {w.topic_partition for w in writes}


def test_committing_the_recorded_identity_shows_the_records(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    name = topic(1)
    writer, _ = new_writer({name: 1})
    writer.open()
    writer.write(batch(key=[b"k"], value=[b"v"]))
    prepared, writes = writer.prepare()
    writer.close()
    end(settings, prepared)
    assert writes_of(name, consume(kafka.bootstrap_servers, name, 1, 1, "read_committed")) == writes


def test_aborting_ends_the_transaction_and_may_be_repeated(
    topic: Callable[..., str], new_writer: NewWriter, settings: KafkaSettings
) -> None:
    name = topic(1)
    writer, transactional_id = new_writer({name: 1})
    writer.abort()
    writer.open()
    writer.write(batch(value=[b"v"]))
    writer.prepare()
    writer.abort()
    writer.abort()
    writer.close()
    writer.close()
    assert not is_open(settings, transactional_id)


@pytest.mark.parametrize("step", ["write", "prepare"])
def test_a_writer_that_is_not_open_writes_nothing(
    step: str, topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(1)
    writer, _ = new_writer({name: 1})
    call = {"write": lambda: writer.write(batch(value=[b"v"])), "prepare": writer.prepare}[step]
    with pytest.raises(ProducerFencedError, match="no open transaction"):
        call()
    writer.open()
    writer.abort()
    with pytest.raises(ProducerFencedError, match="no open transaction"):
        call()


def test_nothing_is_written_behind_what_was_reported(
    topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(1)
    writer, _ = new_writer({name: 1})
    writer.open()
    writer.write(batch(value=[b"v"]))
    _, writes = writer.prepare()
    with pytest.raises(ProducerFencedError, match="is prepared"):
        writer.write(batch(value=[b"w"]))
    assert writer.prepare()[1] == writes


def test_strings_topics_and_partitions_come_from_the_columns(
    kafka: LocalKafka, topic: Callable[..., str], new_writer: NewWriter
) -> None:
    one, two = topic(1), topic(3)
    writer, _ = new_writer({one: 1, two: 3}, default_topic=None)
    writer.open()
    rows = batch(topic=[one, two, two], partition=[None, 2, 2])
    texts = pa.array(["ä", "", None])
    writer.write(rows.append_column("key", texts).append_column("value", texts.cast(pa.large_string())))
    _, writes = writer.prepare()
    assert [(w.topic, w.partition, w.records) for w in writes] == sorted([(one, 0, 1), (two, 2, 2)])
    found = consume(kafka.bootstrap_servers, one, 1, 1)
    assert [(r.key, r.value) for r in found] == [("ä".encode(), "ä".encode())]
    found = consume(kafka.bootstrap_servers, two, 3, 2)
    assert [(r.partition, r.key, r.value) for r in found] == [(2, b"", b""), (2, None, None)]


def test_keys_go_where_javas_client_sends_them(topic: Callable[..., str], new_writer: NewWriter) -> None:
    # murmur2 of b"21" is known from Kafka's own UtilsTest: -973932308
    name = topic(5)
    writer, _ = new_writer({name: 5})
    writer.open()
    writer.write(batch(key=[b"21"], value=[b"v"]))
    assert writer.prepare()[1][0].partition == (-973932308 & 0x7FFFFFFF) % 5


def test_rows_without_a_key_are_spread_over_all_partitions(
    topic: Callable[..., str], new_writer: NewWriter
) -> None:
    name = topic(3)
    writer, _ = new_writer({name: 3})
    writer.open()
    # librdkafka's sticky partitioner changes its mind every 10 ms, by chance: with 20 times a partition is left out in
    # one run of a thousand
    for _ in range(50):
        writer.write(batch(value=[b"v" * 100] * 200))
        time.sleep(0.02)
    writes = writer.prepare()[1]
    assert [w.partition for w in writes] == [0, 1, 2]
    assert sum(w.records for w in writes) == 10_000


def test_the_topics_limit_counts_not_the_clients(topic: Callable[..., str], new_writer: NewWriter) -> None:
    # librdkafka's own message.max.bytes is 1 MB
    name = topic(1, config={"max.message.bytes": "3000000"})
    writer, _ = new_writer({name: TopicLimits(1, 3_000_000)})
    writer.open()
    writer.write(batch(value=[b"v" * 2_000_000]))
    assert writer.prepare()[1][0].bytes == 2_000_000


# -- the one is the other's oracle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioner", ["murmur2_random", "murmur2", "consistent", "consistent_random"])
def test_both_writers_report_and_leave_the_same(
    kafka: LocalKafka, topic: Callable[..., str], partitioner: str
) -> None:
    # only what is spread at random is left out: null keys, and for consistent_random empty ones
    keys: list[bytes | None] = [b"", *(b"key-%d" % (i * 7919 % 400) for i in range(1, 3000))]
    if partitioner == "consistent_random":
        keys[0] = b"x"
    if partitioner in ("murmur2", "consistent"):
        keys[1::50] = [None] * len(keys[1::50])
    rows: dict[str, list[Any]] = {
        "key": keys,
        "value": [None if i % 11 == 0 else b"v" * (i % 90) for i in range(3000)],
        "headers": [[{"key": "ä", "value": b"%d" % i}] * (i % 3) for i in range(3000)],
        "timestamp": [1 + i * 1_000_003 % 10**12 for i in range(3000)],
        "partition": [i % 4 if i % 5 == 0 else None for i in range(3000)],
    }
    settings = settings_of(kafka.bootstrap_servers, partitioner=partitioner)
    found: dict[str, list[object]] = {}
    for kind in KINDS:
        name = topic(4)
        writer = make_writer(kind, settings, target_of(an_id(f"same-{kind}-{partitioner}"), {name: 4}))
        writer.open()
        for start in range(0, 3000, 700):
            writer.write(batch(**{n: c[start : start + 700] for n, c in rows.items()}))
        prepared, writes = writer.prepare()
        writer.close()
        records = consume(kafka.bootstrap_servers, name, 4, 3000)
        assert writes_of(name, records) == writes
        end(settings, prepared, Verdict.ABORT)
        found[kind] = [(w.partition, w.records, w.bytes, w.first_offset, w.last_offset, w.digest) for w in writes]
        found[kind].append(sorted(records))
    assert found["arrow"] == found["confluent"]
