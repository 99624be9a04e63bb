"""A real Spark in this process, and looks at what a write left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import prefix
from airflow_kafka_eos.sandbox.jars import cache_root
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from bench.jvm import spark_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER = "00000000bb"
REPOSITORY = str(Path(__file__).resolve().parents[2])


def kafka_source_jars() -> list[Path]:
    """Spark's own Kafka source, as a session's ``spark.jars``."""
    folder = cache_root() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return sorted(spark_sink(folder, version("pyspark")).glob("*.jar"))


def spark_environment() -> dict[str, str]:
    """Python workers must be of this interpreter, and find the package, wherever the tests run."""
    return {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": REPOSITORY, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """local[2], a task may fail once."""
    from pyspark.sql import SparkSession

    from airflow_kafka_eos.spark.datasource import KafkaEosDataSource

    os.environ.update(spark_environment())
    session = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .getOrCreate()
    )
    session.dataSource.register(KafkaEosDataSource)
    yield session
    session.stop()


@pytest.fixture
def settings(kafka: LocalKafka) -> KafkaSettings:
    return KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})


@pytest.fixture
def ref(request: pytest.FixtureRequest) -> AttemptRef:
    """An attempt of a load of this test's own."""
    return AttemptRef(LoadIdentity("tests", "spark", request.node.name), LEDGER, 1)


@pytest.fixture
def options(kafka: LocalKafka, ref: AttemptRef, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """``options(topic="t", **changes)``: all options of a write; dots of names are written as underscores."""

    def make(**changes: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "load.namespace": ref.load.namespace,
            "load.name": ref.load.name,
            "load.key": ref.load.key,
            "load.attempt": str(ref.attempt),
            "ledger.id": ref.ledger_id,
            "manifest.dir": str(tmp_path),
            "transaction.timeout.ms": "60000",
            "deadline.ms": str(int(time.time() * 1000) + 120_000),
            **({} if ref.slot is None else {"load.slot": str(ref.slot)}),
        } | {name.replace("_", "."): value for name, value in changes.items()}

    return make


@pytest.fixture
def still_open(settings: KafkaSettings, ref: AttemptRef) -> Callable[[], list[str]]:
    """The load's transactional ids that hold back readers; those that are being ended are waited for."""

    def look() -> list[str]:
        with Wire(settings) as wire:
            coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
            end = time.monotonic() + 20
            while True:
                ids = coordinator.list_open(prefix(ref.load, ref.ledger_id))
                seen = coordinator.describe(ids).values()
                if all(d.coordinator_state.value == "Ongoing" for d in seen) or time.monotonic() > end:
                    return sorted(d.transactional_id for d in seen if d.is_open)
                time.sleep(0.05)

    return look
