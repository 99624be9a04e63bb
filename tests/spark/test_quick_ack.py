"""The first rows of a task are not held back: what the kernel is told, by whom, and when. How long it takes: bench/."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from airflow_kafka_eos.spark.datasource import KafkaEosWriter
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.spark.quick_ack import ack_at_once
from airflow_kafka_eos.streams.messages import Begun
from airflow_kafka_eos.streams.source import BATCH_ID, QUERY_ID, BatchWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICKACK: int = getattr(socket, "TCP_QUICKACK", 0)
pytestmark = pytest.mark.skipif(not QUICKACK, reason="only Linux has TCP_QUICKACK")


def connections() -> list[tuple[int, int]]:
    """File descriptor and TCP_QUICKACK of each connection over TCP that this process has."""
    found = []
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    one.getpeername()
                    found.append((fd, one.getsockopt(socket.IPPROTO_TCP, QUICKACK)))
        except OSError:
            continue
    return found


def held_back() -> None:
    """Every connection waits for something that could carry its acknowledgements."""
    for fd, _ in connections():
        with socket.socket(fileno=os.dup(fd)) as one:
            one.setsockopt(socket.IPPROTO_TCP, QUICKACK, 0)
    assert [quick for _, quick in connections()] == [0] * len(connections()) != []


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            yield client, accepted


def test_each_connection_is_acknowledged_at_once_and_nothing_is_left_open(
    pair: tuple[socket.socket, socket.socket]
) -> None:
    held_back()
    before = os.listdir("/proc/self/fd")
    ack_at_once()
    assert {one.getsockopt(socket.IPPROTO_TCP, QUICKACK) for one in pair} == {1}
    assert os.listdir("/proc/self/fd") == before
    pair[0].sendall(b"they are open")
    assert pair[1].recv(100) == b"they are open"


def test_other_sockets_are_left_alone() -> None:
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
        ack_at_once()
        left.sendall(b"x")
        assert right.recv(1) == b"x"


@pytest.mark.parametrize("folder", ["/nowhere", "/"])
def test_where_sockets_cannot_be_listed_nothing_is_done(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setattr("airflow_kafka_eos.spark.quick_ack._OPEN", folder)
    ack_at_once()


def a_batch_writer(spark: SparkSession) -> BatchWriter:
    batch = MicroBatch("n", "q", str(UUID(int=1)), 0, "o")
    spark.sparkContext.setLocalProperty(QUERY_ID, batch.query_id)
    spark.sparkContext.setLocalProperty(BATCH_ID, "0")
    schema = spark.range(1).schema
    return BatchWriter(Begun(batch, StreamRun("/c", "driver"), 1, 0), None, schema, gets_arrow=True)


def seen_before_the_first_rows(spark: SparkSession, writer: Any) -> list[bool]:
    """Of each task: whether the worker's connection was quick when the writer asked for its first rows."""
    frame = spark.range(0, 100, 1, 2).mapInArrow(looking(writer), "quick boolean")
    return [row.quick for row in frame.collect()]


def looking(writer: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tests.spark.test_quick_ack import connections, held_back

        held_back()
        found = []

        def looked() -> Iterator[pa.RecordBatch]:
            found.append(all(quick for _, quick in connections()))
            yield from batches

        writer.write(looked())
        yield pa.RecordBatch.from_arrays([pa.array(found)], ["quick"])

    return task


def test_a_querys_task_asks_for_it_before_its_first_rows(spark: SparkSession) -> None:
    assert seen_before_the_first_rows(spark, a_batch_writer(spark)) == [True, True]


def test_a_loads_task_asks_for_it_before_its_first_rows(
    spark: SparkSession, options: Callable[..., dict[str, str]], settings: KafkaSettings, topic: Callable[..., str]
) -> None:
    given = WriteOptions.parse(options(topic=topic(1)))
    checked = check_cluster(settings, given)
    # of a repair of another partition: its tasks read their rows to the end, and write none
    repair = replace(given.attempt, repairs=((99, given.attempt.attempt),))
    writer = KafkaEosWriter(replace(given, attempt=repair), settings, checked)
    assert seen_before_the_first_rows(spark, writer) == [True, True]
