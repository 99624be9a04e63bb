"""Loads on a real Spark standalone cluster: two workers, client deploy mode, every step by its own operator.

The executors' Python has neither this package nor kafka-python: they come with ``py_files`` only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.spark import LocalSpark
from tests.airflow.conftest import home  # noqa: F401
from tests.airflow.steps import LOAD, connection, open_ids, run, session, state
from tests.reading import committed_values
from tests.spark.bare_python import python_without

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.airflow, pytest.mark.timeout(900)]

PARTITIONS = 3
#: A batch for each record, one on its way at a time: the first one opens the transaction, and there is time to kill.
SLOWLY = {"batch.size": 1, "max.in.flight.requests.per.connection": 1}
#: A thousand bytes each, so that rows go out before the last one is read.
JOB = """
import os, time

def load(spark, rows, tasks, hold=None):
    frame = spark.range(0, rows, 1, tasks).selectExpr("rpad(cast(id as string), 1000, '.') value")
    if hold is None:
        return frame

    def first_run_waits(batches):
        yield from batches
        end = time.monotonic() + 450
        while not os.path.exists(hold):
            if time.monotonic() > end:
                raise TimeoutError(hold)
            time.sleep(0.05)

    return frame.mapInArrow(first_run_waits, frame.schema)
"""


@pytest.fixture(scope="module")
def executor_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_without(tmp_path_factory.mktemp("python") / "venv", "airflow", "_editable", "__editable", "kafka")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("archive") / "eos.zip"
    assert main(["spark-archive", str(path)]) == 0
    return str(path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalSpark]:
    with LocalSpark(workers=2, cores=2) as running:
        yield running


@pytest.fixture
def load(
    cluster: LocalSpark, executor_python: str, archive: str, home: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> Callable[..., Any]:
    """``load(step, key, topic, **prepare_arguments)`` runs one step with the cluster behind ``spark_default``."""
    host, _, port = cluster.master.removeprefix("spark://").partition(":")
    connection(monkeypatch, "spark_default", "spark", host=host, port=int(port), extra={"deploy-mode": "client"})
    for name, value in cluster.client_environment.items():
        monkeypatch.setenv(name, value)
    (home / "job.py").write_text(JOB)
    conf = {
        "spark.pyspark.python": executor_python,
        "spark.pyspark.driver.python": sys.executable,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }

    def step(name: str, key: str, **arguments: Any) -> Any:
        if name != "prepare":
            return run(name, key, **arguments)
        given: dict[str, Any] = {"py_files": archive, "conf": conf, "sql": None, "job": str(home / "job.py")}
        given["conf"] = conf | arguments.pop("conf", {})
        return run("prepare", key, **given | arguments)

    return step


def expected(rows: int) -> list[str]:
    return sorted(str(i).ljust(1000, ".") for i in range(rows))


def finish(load: Callable[..., Any], key: str) -> None:
    for step in ("decide", "commit", "cleanup"):
        load(step, key)
    assert state(key) is LoadState.COMMITTED
    assert open_ids(key) == []


def wait(what: Callable[[], object], prepare: Future[Any], cluster: LocalSpark) -> None:
    end = time.monotonic() + 450
    while not what():
        if prepare.done():
            pytest.fail(f"prepare ended too early: {prepare.exception() or prepare.result()}")
        assert time.monotonic() < end, cluster.logs()
        time.sleep(0.05)


@pytest.mark.parametrize("scope", ["task", "load"])
def test_a_load_arrives_once_with_the_package_in_the_archive_only(
    cluster: LocalSpark, load: Callable[..., Any], kafka: LocalKafka, topic: Callable[..., str], scope: str
) -> None:
    name, key = topic(PARTITIONS), f"cluster {scope}"
    load("begin", key)
    made = load("prepare", key, topics=[name], scope=scope, job_args={"rows": 600, "tasks": 4})
    assert (made["records"], made["transactions"]) == (600, 4 if scope == "task" else 1)
    assert committed_values(kafka.bootstrap_servers, name, PARTITIONS) == []
    finish(load, key)
    assert committed_values(kafka.bootstrap_servers, name, PARTITIONS) == expected(600)


def test_scope_task_an_executor_killed_while_it_writes_costs_nothing(
    cluster: LocalSpark,
    load: Callable[..., Any],
    kafka: LocalKafka,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark runs its tasks again elsewhere, each with an id of its own; cleanup ends what it had open.

    Rule: id-per-task-attempt.
    """
    name, key, go = topic(PARTITIONS), "killed task", tmp_path / "go"
    connection(monkeypatch, "kafka_default", "kafka", extra=SLOWLY | {"bootstrap.servers": kafka.bootstrap_servers})
    arguments = {"rows": 2000, "tasks": 4, "hold": str(go)}
    load("begin", key)
    with ThreadPoolExecutor(1) as pool:
        prepare = pool.submit(load, "prepare", key, topics=[name], job_args=arguments)
        try:
            wait(lambda: len(open_ids(key)) >= 4, prepare, cluster)
            os.kill(cluster.executors()[0], signal.SIGKILL)
        finally:
            go.touch()
        made = prepare.result(450)
    assert (made["records"], made["transactions"], made["attempt"]) == (2000, 4, 1)
    assert len(open_ids(key)) > 4, "the killed executor's own transactions are still there"
    finish(load, key)
    assert committed_values(kafka.bootstrap_servers, name, PARTITIONS) == expected(2000)


def test_scope_load_an_executor_killed_while_it_writes_fails_the_attempt_and_the_next_is_right(
    cluster: LocalSpark,
    load: Callable[..., Any],
    kafka: LocalKafka,
    topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is run again in that transaction, and it is ended before another attempt writes."""
    from airflow.providers.common.compat.sdk import AirflowException

    name, key = topic(PARTITIONS), "killed load"
    connection(monkeypatch, "kafka_default", "kafka", extra=SLOWLY | {"bootstrap.servers": kafka.bootstrap_servers})
    load("begin", key)
    with ThreadPoolExecutor(1) as pool:
        prepare = pool.submit(load, "prepare", key, topics=[name], scope="load", job_args={"rows": 30_000, "tasks": 4})
        wait(lambda: partitions_written(key) == PARTITIONS, prepare, cluster)
        os.kill(cluster.executors()[0], signal.SIGKILL)
        with pytest.raises(AirflowException):
            prepare.result(450)
    assert state(key) is not LoadState.PREPARED
    assert committed_values(kafka.bootstrap_servers, name, PARTITIONS) == []
    connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap_servers})
    made = load("prepare", key, topics=[name], scope="load", job_args={"rows": 900, "tasks": 4})
    assert (made["records"], made["transactions"], made["attempt"]) == (900, 1, 2)
    finish(load, key)
    assert committed_values(kafka.bootstrap_servers, name, PARTITIONS) == expected(900)


def partitions_written(key: str) -> int:
    """Of the one open transaction of a load."""
    with session() as opened:
        from airflow_kafka_eos.naming import prefix

        ids = opened.coordinator.list_open(prefix(LoadIdentity("airflow", LOAD, key), opened.ledger.ledger_id))
        seen = [found for found in opened.coordinator.describe(ids).values() if found is not None]
        return sum(len(found.partitions) for found in seen)
