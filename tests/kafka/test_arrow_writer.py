"""What holds for the Arrow writer alone; the contract of both writers is in test_writers.py."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from airflow_kafka_eos.errors import AccessError, BrokerUnavailableError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.wire import PipelinedWire, Wire
from airflow_kafka_eos.kafka.producer.arrow.writer import ArrowWriter
from airflow_kafka_eos.load import LoadIdentity, WriterName
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter, Part
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from tests.kafka.arrow_support import batch
from tests.kafka.writers_support import (
    LEDGER,
    an_id,
    consume,
    end,
    is_open,
    opened,
    settings_of,
    target_of,
    wait_until,
)
from tests.transaction_version import finalize

pytestmark = pytest.mark.broker


def test_transaction_version_1_on_a_broker_that_could_do_2() -> None:
    # the version that is finalized counts, not what Produce offers: partitions must be announced (KIP-890)
    with LocalKafka(version="4.4.0") as kafka:
        kafka.create_topic("old", partitions=2)
        settings = settings_of(kafka.bootstrap_servers)
        finalize(kafka.bootstrap_servers, 1)

        def shown() -> int:  # on connecting, as a writer that opens is shown it
            with PipelinedWire(settings, timeout_s=10, request_timeout_s=10) as wire:
                return wire.transaction_version()

        wait_until(lambda: shown() == 1, "transaction version 1")
        with opened("arrow", settings, target_of(name := an_id("old"), {"old": 2})) as writer:
            assert isinstance(writer, ArrowWriter) and writer._sender is not None
            # Kafka 4.4 would take a newer one all the same (seen); KIP-890 forbids to send it
            assert writer._sender._enrolment.produce_versions == (9, 11)
            writer.write(batch(value=[b"a", b"b"], partition=[0, 1]))
            prepared, _ = writer.prepare()
            end(settings, prepared)
        assert not is_open(settings, name)
        assert len(consume(kafka.bootstrap_servers, "old", 2, 2, "read_committed")) == 2


def test_a_pooled_id_is_looked_for_over_the_connection_that_writes(
    kafka: LocalKafka, topic: Callable[..., str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One login for each task, not two. librdkafka has logins of its own: there it is closed."""
    name, settings = topic(2), settings_of(kafka.bootstrap_servers)
    ref = AttemptRef(LoadIdentity("tests", f"pooled {kind}", name), LEDGER, 1, slot=0)
    options = WriteOptions(
        ref, "/nowhere", (name,), 120_000, int(time.time() * 1000) + 60_000, writer=WriterName(kind)
    )
    checked = check_cluster(settings, options)
    with Wire(settings) as wire:  # somebody else has initialised the first one since the lease
        Coordinator(wire, namespace="tests", ledger_id=LEDGER).init_producer_id(str(ref.task_id(0, 0)), 60_000)
    made: list[Wire] = []
    opening = Wire.__init__

    def noted(wire: Wire, *arguments: Any, **options: Any) -> None:
        made.append(wire)
        opening(wire, *arguments, **options)

    monkeypatch.setattr(Wire, "__init__", noted)
    report = AttemptWriter(options, settings, checked).write_part(
        Part(0, 0, 7), iter([batch(value=[b"a", b"b"])]), lambda _: None
    )
    assert report.skipped_ids and report.entry.records == 2
    prepared = report.entry.transaction
    assert prepared is not None and prepared.transactional_id == str(ref.task_id(0, 1))
    assert kind == "confluent" or len(made) == 1
    assert all(wire._closed for wire in made)
    end(settings, prepared)
    assert not is_open(settings, ref.task_id(0, 1))


def test_the_newest_metadata_may_not_have_a_broker_any_more(kafka: LocalKafka) -> None:
    # its batches are sent again to the new leader; an exception would end the writer
    answers = []
    with PipelinedWire(settings_of(kafka.bootstrap_servers), timeout_s=10, request_timeout_s=10) as wire:
        assert wire.transaction_version() == 2
        wire.start(99, MetadataRequest(topics=[]), lambda answer, error: answers.append((answer, error)))
        wait_until(lambda: wire.turn(0.1) or bool(answers), "an answer")  # type: ignore[func-returns-value]
    [(answer, error)] = answers
    assert answer is None and isinstance(error, BrokerUnavailableError)


def test_a_refusal_that_is_raised_again_is_an_answer_in_words(kafka: LocalKafka) -> None:
    """kafka-python raises what a connection was refused with, an ssl.SSLError too, from the next call."""
    refusal, answers = ssl.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), []
    with PipelinedWire(settings_of(kafka.bootstrap_servers), timeout_s=10, request_timeout_s=10) as wire:
        wire.broker_ids()
        wire._manager.refusal = refusal
        wire.start(1, MetadataRequest(topics=[]), lambda answer, error: answers.append(error))
        with closing(wire.pool()) as pool:
            pool.submit(1, MetadataRequest(topics=[]), "asked", timeout_s=5)
            wait_until(lambda: bool(answers.extend(r.error for r in pool.wait(1))) or len(answers) == 2, "an answer")  # type: ignore[func-returns-value]
    assert [type(error) for error in answers] == [AccessError, AccessError]


def test_what_is_encoded_and_not_acknowledged_is_bounded(
    kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    # the thread that encodes waits; see test_arrow_memory.py for what that means for a process
    name = topic(1)
    settings = settings_of(kafka.bootstrap_servers, queue_buffering_max_kbytes=1500, batch_size=100_000)
    most = 0
    with opened("arrow", settings, target_of(an_id(name), {name: 1})) as writer:
        assert isinstance(writer, ArrowWriter) and writer._sender is not None
        for _ in range(100):
            writer.write(batch(value=[b"v" * 50_000] * 10))
            most = max(most, writer._sender._backlog)
        writer.prepare()
    assert 0 < most <= 1_500 * 1024


@pytest.mark.parametrize("batch_size", [5000, 1_000_000])
def test_many_partitions_and_topics_in_one_transaction(
    kafka: LocalKafka, topic: Callable[..., str], batch_size: int
) -> None:
    names = [topic(40) for _ in range(3)]
    settings = settings_of(kafka.bootstrap_servers, batch_size=batch_size)
    with opened("arrow", settings, target_of(an_id(names[0]), {n: 40 for n in names})) as writer:
        for start in range(0, 12_000, 4000):
            numbers = range(start, start + 4000)
            writer.write(batch(value=[b"%d" % n for n in numbers], topic=[names[n % 3] for n in numbers]))
        _, writes = writer.prepare()
    assert sum(w.records for w in writes) == 12_000
    assert {w.topic for w in writes} == set(names)
    assert len(writes) == 120
