"""What a task leaves connected for the next one of its process: those of a streaming query, where they end well."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_kafka_eos.errors import RecordError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import PipelinedWire
from airflow_kafka_eos.kafka.producer.arrow import sent_transaction
from airflow_kafka_eos.kafka.producer.arrow.sent_transaction import wire_to
from airflow_kafka_eos.kafka.producer.options import ProducerOptions
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from airflow_kafka_eos.naming import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter
from airflow_kafka_eos.spark.datasource import KafkaEosWriter
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.streams.messages import Begun
from airflow_kafka_eos.streams.source import BATCH_ID, QUERY_ID, BatchWriter
from tests.kafka.writers_support import LEDGER, an_id, consume, end, settings_of, target_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    if (wire := sent_transaction._kept.pop(os.getpid(), None)) is not None:
        wire.close()


def kept() -> PipelinedWire | None:
    return sent_transaction._kept.get(os.getpid())


Write = Callable[..., PipelinedWire]


@pytest.fixture
def write(kafka: LocalKafka, topic: Callable[..., str]) -> Write:
    """``write(keeps_wire=True, fails="", **settings)``: a transaction of one record; its wire."""
    name, written = topic(1), iter(range(100))

    def one(*, keeps_wire: bool = True, fails: str = "", **changes: str) -> PipelinedWire:
        settings = settings_of(kafka.bootstrap_servers, **changes)
        target = target_of(an_id(f"{name} {next(written)}"), {name: 1})
        with closing(make_writer("arrow", settings, target, keeps_wire=keeps_wire)) as writer:
            writer.open()
            wire: PipelinedWire = writer._wire  # type: ignore[attr-defined]
            if fails == "a row":
                with pytest.raises(RecordError):
                    writer.write(pa.RecordBatch.from_pydict({"value": [b"v"], "topic": ["another"]}))
            else:
                writer.write(pa.RecordBatch.from_pydict({"value": [b"v"]}))
                prepared, _ = writer.prepare()
                if fails != "the report":
                    end(settings, prepared)
            if fails:
                writer.abort()
        return wire

    return one


def test_who_ends_well_leaves_the_wire_to_the_next_one(write: Write) -> None:
    first = write()
    assert kept() is first and not first._closed
    assert write() is first and kept() is first


def test_a_load_closes_its_own(write: Write) -> None:
    first = write()
    assert write(keeps_wire=False)._closed
    assert kept() is first


@pytest.mark.parametrize("fails", ["a row", "the report"])
def test_who_fails_closes_it(write: Write, fails: str) -> None:
    first = write()
    assert write(fails=fails) is first
    assert first._closed and kept() is None


def test_what_is_not_as_good_as_a_new_one_is_closed(write: Write) -> None:
    first = write()
    second = write(message_timeout_ms="100000")
    assert first._closed and kept() is second, "of other settings: a password that was changed is one"
    third = write()
    assert second._closed
    third._old_at = time.monotonic()
    fourth = write()
    assert third._closed and kept() is fourth
    (connection,) = fourth._manager.least_used_connections()
    connection.pause("throttle")
    assert write() is not fourth and fourth._closed, "a broker has asked for a pause: a new one would not know"


def test_of_two_threads_one_keeps_its_own(write: Write) -> None:
    first = write()
    with closing(wire_to(first.settings, ProducerOptions.from_settings(first.settings), keeps_wire=True)) as lent:
        assert lent is first
        second = write()
        assert second is not first
        sent_transaction.keep(first)
    assert first._closed and kept() is second


def test_a_process_that_was_forked_uses_one_of_its_own(write: Write) -> None:
    first = write()
    forking = multiprocessing.get_context("fork")
    read, sent = forking.Pipe(duplex=False)

    def child() -> None:
        own = wire_to(first.settings, ProducerOptions.from_settings(first.settings), keeps_wire=True)
        sent.send((own is first, own.broker_ids()))
        own.close()

    process = forking.Process(target=child)
    process.start()
    process.join(60)
    assert read.poll() and read.recv() == (False, first.broker_ids())
    assert write() is first


# -- in Spark's Python workers -----------------------------------------------------------------------------------------


def wires_of(spark: SparkSession, settings: KafkaSettings, made: Callable[[int], Any]) -> dict[int, set[float]]:
    """The wires that were left in each worker behind a task, by its process; one of them has had two tasks."""
    found: dict[int, list[float]] = {}
    for number in range(30):
        spark.sparkContext.setLocalProperty(BATCH_ID, str(number))
        frame = spark.range(0, 1, 1, 1).selectExpr("cast('v' as binary) as value")
        (row,) = frame.mapInArrow(leaving(made(number)), "pid int, wire double, report binary").collect()
        message = pickle.loads(row.report)
        end(settings, getattr(message, "report", message).entry.transaction)
        found.setdefault(row.pid, []).append(row.wire)
        if len(found[row.pid]) == 2:
            return {pid: set(wires) for pid, wires in found.items()}
    raise AssertionError(found)


def leaving(writer: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tests.spark.test_kept_wires import kept

        report = pickle.dumps(writer.write(batches))
        wire = kept()
        columns = [
            pa.array([os.getpid()], pa.int32()),
            pa.array([0.0 if wire is None else wire._old_at]),
            pa.array([report], pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, ["pid", "wire", "report"])

    return task


# loads first: a worker that has run a query's task has its wire
@pytest.mark.parametrize("slot", [None, 3], ids=["incrementing", "pooling"])
@pytest.mark.parametrize("kind", ["a load", "a query"])
def test_a_querys_task_finds_what_the_last_batch_has_left_and_a_loads_leaves_nothing(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], kind: str, slot: int | None
) -> None:
    name, settings = topic(1), settings_of(kafka.bootstrap_servers)
    query_id = str(UUID(int=7))
    spark.sparkContext.setLocalProperty(QUERY_ID, query_id)
    schema = spark.range(1).schema

    def made(number: int) -> Any:
        ref = AttemptRef(LoadIdentity("tests", name, str(number)), LEDGER, number + 1, slot and slot + number)
        options = WriteOptions(ref, "/nowhere", (name,), 120_000, int(time.time() * 1000) + 60_000)
        checked = check_cluster(settings, options)
        if kind == "a load":
            return KafkaEosWriter(options, settings, checked)
        begun = Begun(MicroBatch("tests", name, query_id, number, "o"), StreamRun("/c", "driver"), number + 1)
        return BatchWriter(begun, AttemptWriter(options, settings, checked, keeps_wire=True), schema, gets_arrow=True)

    found = wires_of(spark, settings, made)
    if kind == "a load":
        assert set.union(*found.values()) <= {0.0}
    else:
        assert all(len(wires) == 1 and wires != {0.0} for wires in found.values())
    assert consume(kafka.bootstrap_servers, name, 1, 2, "read_committed")
