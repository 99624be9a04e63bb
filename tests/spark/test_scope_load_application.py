"""Scope ``load`` by the packaged application, and a driver that is killed while its tasks write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import TransactionScope, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.errortext import printed_error
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.spark.conftest import spark_environment
from tests.spark.test_application import submit
from tests.spark.writing import visible

pytestmark = [pytest.mark.broker, pytest.mark.spark]

QUIET = ("--conf", "spark.ui.enabled=false")
KILLED = """
import os, sys, time
from pyspark.sql import SparkSession
from airflow_kafka_eos.spark.datasource import KafkaEosDataSource
from airflow_kafka_eos.spark.no_retries import ONE_RUN
from airflow_kafka_eos.spark.scope import own_partitions

options = __OPTIONS__
builder = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
for key, value in ONE_RUN.items():
    builder = builder.config(key, value)
spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "50").getOrCreate()
spark.dataSource.register(KafkaEosDataSource)

def never_ending(batches):
    yield from batches
    time.sleep(600)

frame = own_partitions(spark.sql("select cast(id as string) key, repeat('v', 9000) value from range(2000)"), options)
frame.mapInArrow(never_ending, frame.schema).write.format("kafka_eos").options(**options).mode("append").save()
"""


@pytest.fixture
def spec(ref: AttemptRef, tmp_path: Path) -> ApplicationSpec:
    deadline = int(time.time() * 1000) + 120_000
    return ApplicationSpec(
        WriteOptions(ref, str(tmp_path / "m"), ("t",), 60_000, deadline, scope=TransactionScope.LOAD),
        sql="select cast(id as string) key, concat('v', id) value from range(0, 100, 1, 3)",
    )


def test_the_application_arranges_the_rows_and_tells_spark_to_run_nothing_twice(
    spec: ApplicationSpec, kafka: LocalKafka, topic: Callable[..., str], ref: AttemptRef,
    settings: KafkaSettings, still_open: Callable[[], list[str]],
) -> None:
    spec = replace(spec, options=replace(spec.options, topics=(topic(3),)))
    code, out, err = submit(spec, kafka.bootstrap_servers, spark_environment(), *QUIET)
    assert code == 0, out + err
    assert "prepared 100 records in 1 transaction (scope load, two-phase commit, writer arrow), 3 Spark" in out
    manifest = ManifestStore(spec.options.manifest_dir).read(ref)
    assert still_open() == [t.transactional_id for t in manifest.transactions]
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        coordinator.end(manifest.transactions[0], Verdict.COMMIT)
    assert sorted(visible(kafka, spec.options.topics[0], 3, 100)) == sorted((b"%d" % i, b"v%d" % i) for i in range(100))


def test_speculation_is_refused(
    spec: ApplicationSpec, kafka: LocalKafka, topic: Callable[..., str], still_open: Callable[[], list[str]]
) -> None:
    spec = replace(spec, options=replace(spec.options, topics=(topic(1),)))
    code, out, err = submit(
        spec, kafka.bootstrap_servers, spark_environment(), *QUIET, "--conf", "spark.speculation=true"
    )
    assert code == 1
    kind, message = printed_error(out + err) or (None, out + err)
    assert kind is ConfigurationError and message.startswith("spark.speculation is on"), message
    assert still_open() == []


def test_a_driver_killed_while_its_tasks_write_leaves_nothing_to_see(
    kafka: LocalKafka, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    settings: KafkaSettings, still_open: Callable[[], list[str]], tmp_path: Path,
) -> None:
    """Nobody comes back: the broker ends the one transaction at its timeout."""
    name = topic(4)
    given = options(topic=name, transaction_scope="load", transaction_two_phase_commit="off") | {
        "transaction.timeout.ms": "20000",
        "deadline.ms": str(int(time.time() * 1000) + 300_000),
    }
    script = tmp_path / "killed.py"
    script.write_text(KILLED.replace("__OPTIONS__", json.dumps(given)))
    with open(tmp_path / "log", "w") as log:
        driver = subprocess.Popen(
            [sys.executable, str(script)], env=os.environ | spark_environment(), start_new_session=True,
            stdout=log, stderr=log, cwd=tmp_path,
        )  # fmt: skip
    load_id = str(TransactionalId(ref.load, ref.ledger_id, 1, role=IdRole.LOAD))
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)

        def written() -> int:
            found = coordinator.describe([load_id]).get(load_id)
            return len(found.partitions) if found is not None else 0

        try:
            end = time.monotonic() + 240  # a machine that does other things takes minutes to start Spark
            while written() < 2:
                assert driver.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.05)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(30)
        end = time.monotonic() + 60
        while still_open():
            assert time.monotonic() < end
            time.sleep(0.2)
    assert visible(kafka, name, 4, 1) == []
    assert not ManifestStore(str(tmp_path)).is_written(ref)
