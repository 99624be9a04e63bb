"""Pooled ids through Spark: used again by the next load, skipped in a stage that runs again.

Rule: id-per-task-attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, TransactionScope, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import IdRole, PooledId, name_prefix
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.no_retries import ran_once
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.spark.conftest import spark_environment
from tests.spark.lost_shuffle import lose_shuffle
from tests.spark.test_application import submit
from tests.spark.writing import visible, write

pytestmark = [pytest.mark.broker, pytest.mark.spark]

QUIET = ("--conf", "spark.ui.enabled=false")


@pytest.fixture
def ref(request: pytest.FixtureRequest) -> AttemptRef:
    """The first holder of slot 0 of a name of this test's own."""
    return AttemptRef(LoadIdentity("tests", request.node.name, "first"), "00000000bb", 1, slot=0)


@pytest.fixture
def coordinator(settings: KafkaSettings, ref: AttemptRef) -> Iterator[Coordinator]:
    with Wire(settings) as wire:
        yield Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)


def test_the_application_writes_scope_load_with_the_id_of_its_slot(
    kafka: LocalKafka, topic: Callable[..., str], ref: AttemptRef, coordinator: Coordinator, tmp_path: Path
) -> None:
    """Scope task, twice, is in tests/airflow/test_pooling.py. Here the id has been used before."""
    name, whole = topic(2), str(ref.common_id(IdRole.LOAD))
    before = coordinator.init_producer_id(whole, 60_000)
    deadline = int(time.time() * 1000) + 300_000
    spec = ApplicationSpec(
        WriteOptions(ref, str(tmp_path), (name,), 60_000, deadline, scope=TransactionScope.LOAD),
        sql="select cast(id as string) key, concat('v', id) value from range(0, 100, 1, 2)",
    )
    store = ManifestStore(spec.options.manifest_dir)
    code, out, err = submit(spec, kafka.bootstrap_servers, spark_environment(), *QUIET)
    assert code == 0, out + err
    manifest = store.read(ref)
    assert manifest.records == 100
    assert not store.writers_left(manifest), "each task ran once, and Spark says so"
    (transaction,) = manifest.transactions
    assert (transaction.transactional_id, transaction.state.producer_id) == (whole, before.producer_id)
    coordinator.end(transaction, Verdict.COMMIT)
    known = coordinator.list_known(name_prefix(ref.load.namespace, ref.ledger_id, ref.load.name))
    assert set(known) == {whole, str(ref.common_id(IdRole.PROBE))}
    assert len(visible(kafka, name, 2, 100)) == 100


def test_a_stage_that_runs_again_skips_the_id_that_its_first_run_has_initialised(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    ref: AttemptRef, coordinator: Coordinator, tmp_path: Path,
) -> None:
    """A true fetch failure: rows of the first try are in an open transaction when its shuffle files are gone."""
    name, lost = topic(2), lose_shuffle(spark, tmp_path / "lost")
    spark.sparkContext.setJobGroup("stage runs again", "x")
    write(lost.frame, options(topic=name))
    assert not ran_once(spark.sparkContext, "stage runs again"), "Spark knows that the stage ran again"
    assert [run.attempt_number for run in lost.runs()] == [0, 0], "it did not"
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.ran_again
    (accepted,) = manifest.transactions
    assert PooledId.parse(accepted.transactional_id) == ref.task_id(0, 1)
    coordinator.end(accepted, Verdict.COMMIT)
    for left in coordinator.describe([str(ref.task_id(0, 0))]).values():
        coordinator.end(PreparedTransaction(left.transactional_id, left.state), Verdict.ABORT)
    assert len(visible(kafka, name, 2, 300)) == 300


def test_a_task_that_spark_tries_again_leaves_the_id_of_its_first_try_alone(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path,
) -> None:
    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first try")

    frame = spark.sql("select cast(id as string) key, repeat('v', 9000) value from range(0, 200, 1, 1)")
    spark.sparkContext.setJobGroup("fails once", "x")
    write(frame.mapInArrow(fails_once, frame.schema), options(topic=topic(1)))
    assert not ran_once(spark.sparkContext, "fails once")
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.ran_again
    assert [t.transactional_id for t in manifest.transactions] == [str(ref.task_id(0, 1))]


def test_what_nobody_said_counts_as_run_twice(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path,
) -> None:
    """A plain df.write, whose driver says nothing of speculation or stages."""
    frame = spark.sql("select 'k' key, 'v' value")
    spark.sparkContext.setJobGroup("plain", "x")
    write(frame, options(topic=topic(1)))
    store = ManifestStore(str(tmp_path))
    manifest = store.read(ref)
    assert not manifest.ran_again
    assert store.writers_left(manifest)
    # nor do a job group that Spark does not know, or speculation
    assert ran_once(spark.sparkContext, "plain")
    assert not ran_once(spark.sparkContext, "no such group", wait_s=0.1)
    store.note_ran_once(ref)
    assert not store.writers_left(manifest)
    assert store.writers_left(replace(manifest, ran_again=True))
