"""The plain writer against a real broker: what it leaves behind, and what it says when it cannot."""

from __future__ import annotations

import gc
import time

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Assignment

from airflow_kafka_eos.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    ProducerFencedError,
    RecordError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.confluent_writer import ConfluentWriter
from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.kafka.describing import abort_reported, describe_once
from airflow_kafka_eos.kafka.digest import record_bytes, record_digest
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.tally import Tally
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.kafka.writer import TopicLimits, WriteTarget
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.transaction import PreparedTransaction

pytestmark = pytest.mark.broker

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LEDGER = "00000000aa"


@pytest.fixture
def settings(kafka):
    return KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def new_writer(settings, request):
    """``new_writer(topics, **changes)``: a writer of its own transactional id."""
    made = []

    def create(topics, default=None, describe=None, **changes):
        load = LoadIdentity("tests", "confluent", f"{request.node.name}-{len(made)}")
        target = WriteTarget(
            **{
                "transactional_id": TransactionalId(load, LEDGER, 1, 0, 0),
                "topics": {
                    t: TopicLimits(n, 1_048_588) if isinstance(n, int) else n for t, n in topics.items()
                },
                "default_topic": default,
                "transaction_timeout_ms": 60_000,
                "deadline_ms": int(time.time() * 1000) + 60_000,
                **changes,
            }
        )
        writer = ConfluentWriter(
            settings, target, describe or (lambda _: describe_once(settings, target.transactional_id))
        )
        made.append(writer)
        return writer, target.transactional_id

    yield create
    for writer in made:
        writer.abort()


def batch(**columns):
    types = {"headers": HEADERS, "partition": pa.int32(), "topic": pa.string()}
    return pa.RecordBatch.from_pydict({n: pa.array(v, types.get(n, pa.binary())) for n, v in columns.items()})


def read(kafka, topic, partitions, count, isolation="read_uncommitted"):
    """What a consumer of another library's reader finds: a Tally's writes, and the records."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "isolation.level": isolation}
    )
    consumer.assign([Assignment(topic, p, 0) for p in range(partitions)])
    tally, records, end = Tally(), [], time.monotonic() + 30
    while len(records) < count and time.monotonic() < end:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        record = (message.key(), message.value(), message.headers() or [])
        tally.add(topic, message.partition(), message.offset(), record_bytes(*record), record_digest(*record))
        records.append((message.partition(), *record))
    consumer.close()
    return tally.writes(), records


def test_what_it_reports_is_what_is_in_the_log(kafka, topic, new_writer):
    name = topic(3)
    writer, _ = new_writer({name: 3}, default=name)
    writer.open()
    keys = [None, b"", *(b"%d" % i for i in range(498))]
    values = [b"v%d" % i if i % 7 else None for i in range(500)]  # null values are tombstones
    headers = [
        [{"key": "h", "value": b"%d" % i}, {"key": "h", "value": None}] if i % 3 else None for i in range(500)
    ]
    for start in range(0, 500, 100):
        part = slice(start, start + 100)
        writer.write(batch(key=keys[part], value=values[part], headers=headers[part]))
    _, writes = writer.prepare()
    writer.close()
    found, records = read(kafka, name, 3, 500)
    assert writes == found
    wanted = [
        (k, v, [("h", b"%d" % i), ("h", None)] if i % 3 else [])
        for i, (k, v) in enumerate(zip(keys, values, strict=True))
    ]
    assert sorted(map(repr, (r[1:] for r in records))) == sorted(map(repr, wanted))


def test_a_prepared_transaction_stays_open_when_the_writer_is_gone(topic, new_writer, settings):
    # Producer.close() would abort it
    name = topic(2)
    writer, transactional_id = new_writer({name: 2}, default=name)
    opened = writer.open()
    writer.write(batch(value=[b"a", b"b"], partition=[0, 1]))
    prepared, writes = writer.prepare()
    writer.close()
    del writer
    gc.collect()
    seen = describe_once(settings, transactional_id)
    assert seen.coordinator_state.value == "Ongoing"
    assert prepared.transactional_id == str(transactional_id)
    assert prepared.state == opened == seen.state  # rule 4: recorded is what InitProducerId was answered
    assert seen.partitions == {w.topic_partition for w in writes}


def test_committing_the_recorded_identity_shows_the_records(kafka, topic, new_writer, settings):
    name = topic(1)
    writer, _ = new_writer({name: 1}, default=name)
    writer.open()
    writer.write(batch(key=[b"k"], value=[b"v"]))
    prepared, writes = writer.prepare()
    writer.close()
    with Wire(settings) as wire:
        Coordinator(wire, namespace="tests", ledger_id=LEDGER).end(prepared, Verdict.COMMIT)
    assert read(kafka, name, 1, 1, "read_committed")[0] == writes


def test_strings_topics_and_partitions_come_from_the_columns(kafka, topic, new_writer):
    one, two = topic(1), topic(3)
    writer, _ = new_writer({one: 1, two: 3})
    writer.open()
    rows = batch(topic=[one, two, two], partition=[None, 2, 2])
    texts = pa.array(["ä", "", None])
    writer.write(rows.append_column("key", texts).append_column("value", texts.cast(pa.large_string())))
    _, writes = writer.prepare()
    assert [(w.topic, w.partition, w.records) for w in writes] == sorted([(one, 0, 1), (two, 2, 2)])
    assert read(kafka, one, 1, 1)[1] == [(0, "ä".encode(), "ä".encode(), [])]
    assert read(kafka, two, 3, 2)[1] == [(2, b"", b"", []), (2, None, None, [])]


def test_keys_go_where_javas_client_sends_them(kafka, topic, new_writer):
    # murmur2 of b"21" is known from Kafka's own UtilsTest: -973932308
    name = topic(5)
    writer, _ = new_writer({name: 5}, default=name)
    writer.open()
    writer.write(batch(key=[b"21"], value=[b"v"]))
    assert writer.prepare()[1][0].partition == (-973932308 & 0x7FFFFFFF) % 5


def test_the_topics_limit_counts_not_the_clients(topic, new_writer):
    # librdkafka's own message.max.bytes is 1 MB
    name = topic(1, config={"max.message.bytes": "3000000"})
    writer, _ = new_writer({name: TopicLimits(1, 3_000_000)}, default=name)
    writer.open()
    writer.write(batch(value=[b"v" * 2_000_000]))
    assert writer.prepare()[1][0].bytes == 2_000_000


def bad_inputs(name):
    small = {name: TopicLimits(2, 2000)}
    return {
        "unknown partition": (small, {"value": [b"v"], "partition": [7]}, f"partition 7 of topic '{name}'"),
        "too large alone": (small, {"value": [b"v" * 3000]}, "3000 bytes"),
        # fits by its content, not with what Kafka adds: the broker's own word
        "too large for the broker": (small, {"value": [b"v" * 1995]}, "takes at most 2000 bytes"),
        "foreign topic": (small, {"value": [b"v"], "topic": ["other"]}, "'other'"),
        "null topic": (small, {"value": [b"v"], "topic": [None]}, "topic column is null"),
        "header without key": (
            small,
            {"value": [b"v"], "headers": [[{"key": None, "value": b""}]]},
            "header without",
        ),
        "believed partition": (
            {name: TopicLimits(9, 2000)},
            {"value": [b"v"], "partition": [7]},
            "partition 7",
        ),
    }


@pytest.mark.parametrize("case", bad_inputs("x"))
def test_a_bad_record_is_named_and_nothing_stays_open(case, topic, new_writer, settings):
    name = topic(2, config={"max.message.bytes": "2000"})
    topics, columns, message = bad_inputs(name)[case]
    writer, transactional_id = new_writer(topics, default=None if case == "null topic" else name)
    writer.open()
    writer.write(batch(topic=[name], value=[b"good"]))
    expected = ConfigurationError if case == "believed partition" else RecordError
    with pytest.raises(expected) as caught:
        writer.write(batch(**columns))
        writer.prepare()
    assert message in str(caught.value)
    assert "vvv" not in str(caught.value)  # a record's content may be private
    writer.abort()
    # the coordinator answers before the markers are written
    end = time.monotonic() + 20
    while (seen := describe_once(settings, transactional_id)).is_open and time.monotonic() < end:
        time.sleep(0.05)
    assert not seen.is_open, seen


def test_past_its_deadline_it_opens_nothing(topic, new_writer, settings):
    # rule 5
    name = topic(1)
    writer, transactional_id = new_writer({name: 1}, default=name, deadline_ms=int(time.time() * 1000) - 1)
    with pytest.raises(UndecidableError, match="deadline"):
        writer.open()
    assert describe_once(settings, transactional_id) is None


def test_a_transaction_that_someone_took_over_is_not_reported(kafka, topic, new_writer):
    name = topic(1)
    writer, transactional_id = new_writer({name: 1}, default=name)
    writer.open()
    writer.write(batch(value=[b"v"]))
    zombie = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": str(transactional_id)}
    )
    zombie.init_transactions(30)
    with pytest.raises(ProducerFencedError, match=r"FENCED|INVALID_PRODUCER_EPOCH"):
        writer.write(batch(value=[b"v"]))
        writer.prepare()


def test_a_transaction_that_was_ended_is_not_reported(topic, new_writer, settings):
    # rule 4: Describe confirms; without asking it, an aborted transaction would be reported as prepared
    name = topic(1)

    def end_then_describe(_):
        load = transactional_id.load
        abort_reported(settings, AttemptRef(load, LEDGER, 1), [prepared])
        return describe_once(settings, transactional_id)

    writer, transactional_id = new_writer({name: 1}, default=name, describe=end_then_describe)
    state = writer.open()
    prepared = PreparedTransaction(str(transactional_id), state)
    writer.write(batch(value=[b"v"]))
    with pytest.raises(ProducerFencedError, match="coordinator shows"):
        writer.prepare()


def test_a_hold_time_above_the_brokers_is_refused(topic, new_writer):
    name = topic(1)
    writer, _ = new_writer({name: 1}, default=name, transaction_timeout_ms=2_000_000_000)
    with pytest.raises(ConfigurationError, match="INVALID_TRANSACTION_TIMEOUT"):
        writer.open()


def test_a_broker_that_is_not_there_is_said_so(topic):
    settings = KafkaSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    load = LoadIdentity("tests", "confluent", "nobody")
    target = WriteTarget(
        TransactionalId(load, LEDGER, 1, 0, 0),
        {"t": TopicLimits(1, 1000)},
        "t",
        60_000,
        int(time.time() * 1000) + 2000,
    )
    with pytest.raises(BrokerUnavailableError):
        ConfluentWriter(settings, target, lambda _: None).open()
