"""When a Spark Connect server's task looks whether its attempt is over. Without a server: its rows come from here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from airflow_kafka_eos.connect import fence, task
from airflow_kafka_eos.connect.task import ExecutorWriter, Work
from airflow_kafka_eos.errors import SupersededError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster

pytestmark = pytest.mark.broker

LEDGER = "00000000ca"
ROWS = pa.RecordBatch.from_pydict({"value": ["v"]})


@pytest.fixture
def writer(
    kafka: LocalKafka, topic: Callable[..., str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ExecutorWriter:
    monkeypatch.setattr(task, "LOOK_S", 0.0)
    ref = AttemptRef(LoadIdentity("tests", "connect", request.node.name), LEDGER, 1)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    options = WriteOptions(ref, "/nowhere", (topic(),), 900_000, int(time.time() * 1000) + 1_800_000)
    checked = check_cluster(settings, options)  # before it: two-phase commit is asked for by the same id
    stood = fence.stand(settings, ref, options.deadline_ms, lambda: None)
    with Wire(settings) as wire:
        cluster_id = wire.cluster_id()
    assert cluster_id is not None
    return ExecutorWriter(Work(options, checked, {}, "any", (), cluster_id, "app-1", stood), settings)


def move(writer: ExecutorWriter) -> None:
    ref = writer.options.attempt
    with Wire(writer.settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        assert fences.move(coordinator, [ref], set())


def test_a_task_whose_fence_stands_gets_all_of_its_rows(writer: ExecutorWriter) -> None:
    assert list(writer.looking(iter([ROWS, ROWS]), "app-1")) == [ROWS, ROWS]


def test_a_task_without_rows_asks_nobody(writer: ExecutorWriter) -> None:
    move(writer)
    assert list(writer.looking(iter([ROWS.slice(0, 0)]), "app-1")) == [ROWS.slice(0, 0)]


def test_a_task_whose_fence_has_moved_gets_no_row(writer: ExecutorWriter) -> None:
    move(writer)
    with pytest.raises(SupersededError, match=r"its fence .* stands at"):
        next(writer.looking(iter([ROWS]), "app-1"))


def test_a_task_looks_again_between_batches(writer: ExecutorWriter) -> None:
    rows = writer.looking(iter([ROWS, ROWS]), "app-1")
    next(rows)
    move(writer)
    with pytest.raises(SupersededError):
        next(rows)


def test_a_task_looks_again_before_it_ends(writer: ExecutorWriter) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield ROWS
        move(writer)

    rows = writer.looking(source(), "app-1")
    next(rows)
    with pytest.raises(SupersededError):
        next(rows)
