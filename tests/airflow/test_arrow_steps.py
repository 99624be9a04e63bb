"""prepare with engine="arrow" by its operator: what is lost comes back, a kill ends it, and no pyspark is needed."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad, exactly_once_load
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import CONTEXT, LOAD, connection, open_ids, operator, refused, run, session
from tests.airflow.test_repreparing_steps import all_there_once, finish, lose, prepared
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values
from tests.spark.bare_python import python_without
from tests.spark.formats_registry import Gate, running_registry

VALUES = sorted(f"v{n}" for n in range(100))
JOB = """
import pyarrow as pa

def load(numbers=100, sleep_s=0.0, error="", size=0):
    import time

    schema = pa.schema([("key", pa.string()), ("value", pa.string())])

    def batches():
        for n in range(0, numbers, 50):
            ids = range(n, min(n + 50, numbers))
            keys = [f"{i}" + "x" * size for i in ids]
            yield pa.record_batch([keys, [f"v{i}" for i in ids]], schema=schema)
            time.sleep(sleep_s)
        if error:
            raise OSError(error)

    return pa.RecordBatchReader.from_batches(schema, batches())
"""


@pytest.fixture
def job(home: Path) -> dict[str, Any]:
    (home / "rows.py").write_text(JOB)
    return {"job": str(home / "rows.py"), "engine": "arrow"}


def test_a_load_goes_its_way_and_what_is_lost_is_prepared_again(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], job: dict[str, Any]
) -> None:
    name = topic(3)
    manifest = prepared(home, "lost", topics=[name], **job)
    lose(kafka, "lost", manifest, 0)
    assert "RecordsGoneError: Spark partition 0 " in refused("commit", "lost")
    done = run("prepare", "lost", topics=[name], **job)
    assert (done["verdict"], done["prepared_again"], done["records"]) == ("commit", [0], 100)
    finish("lost")
    all_there_once(kafka, "lost", name, 3, VALUES)
    run("cleanup", "lost")
    again = run("prepare", "lost", topics=[name], **job)
    assert again["verdict"] == "commit" and "prepared_again" not in again


def test_another_source_is_not_taken_for_what_was_lost(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], job: dict[str, Any]
) -> None:
    name = topic(1)
    manifest = prepared(home, "changed", topics=[name], **job)
    lose(kafka, "changed", manifest, 0)
    text = refused("prepare", "changed", topics=[name], job_args={"numbers": 99}, **job)
    assert "InDoubtError" in text and "what was prepared again is not what was lost" in text
    assert committed_values(kafka.bootstrap_servers, name, 1) == []
    wait_until(lambda: open_ids("changed") == [], "the end of what was prepared again")


def retried(key: str, said: str, **arguments: Any) -> bool:
    """Whether prepare fails with this so that Airflow tries it again."""
    with pytest.raises(AirflowException, match=said) as caught:
        run("prepare", key, **arguments)
    return not isinstance(caught.value, AirflowFailException)


def test_an_error_of_the_stream_is_tried_again_and_leaves_nothing(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], job: dict[str, Any]
) -> None:
    name = topic(1)
    run("begin", "broken")
    ended = r"StreamError: .*rows\.py ended in an error behind 100 records: OSError: no disk"
    assert retried("broken", ended, topics=[name], job_args={"error": "no disk", "size": 90_000}, **job)
    wait_until(lambda: open_ids("broken") == [], "the end of what was written")
    text = refused("prepare", "broken", topics=[name], max_records=50, **job)
    assert "CheckFailedError: the stream of" in text and "max_records=50" in text
    text = refused("prepare", "broken", topics=[name], max_batch_bytes=100, **job)
    assert "ConfigurationError: a batch of the stream of" in text
    late = {"job_args": {"sleep_s": 0.5}, "writer_deadline": 0.2}
    assert retried("broken", "UndecidableError: the deadline for opening", topics=[name], **late, **job)
    run("prepare", "broken", topics=[name], **job)
    finish("broken")
    all_there_once(kafka, "broken", name, 1, VALUES)


def test_a_job_that_is_not_there_takes_no_attempt(home: Path, topic: Callable[..., str]) -> None:
    run("begin", "nowhere")
    text = refused("prepare", "nowhere", topics=[topic()], job="nowhere.py", engine="arrow")
    assert "/nowhere.py where prepare runs" in text, "where it was looked for"
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, "nowhere"))
    assert not row.is_submitted


def test_begin_looks_for_the_job_and_not_for_a_spark(
    home: Path, topic: Callable[..., str], job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    monkeypatch.setenv("PATH", "/nonexistent")

    def begin(key: str, **given: Any) -> Any:
        with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)):
            load = ExactlyOnceLoad("load", load_name=LOAD, load_key=key, topics=[name], **job | given)
        return load.begin.execute(CONTEXT)

    name = topic()
    assert begin("seen")["attempt"] == 1
    with pytest.raises(AirflowFailException, match=r"job='gone\.py': the file .* is not there on .*where prepare runs"):
        begin("unseen", job="gone.py")
    with pytest.raises(AirflowFailException, match="no Airflow connection of that name"):
        begin("with spark", engine="spark")


def test_on_kill_ends_the_reading_and_what_was_written(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], job: dict[str, Any]
) -> None:
    name = topic()
    run("begin", "killed")
    slow = {"numbers": 10**6, "sleep_s": 0.05, "size": 90_000}
    prepare = operator("prepare", "killed", topics=[name], job_args=slow, **job)
    ended: list[BaseException | None] = []

    def execute() -> None:
        try:
            prepare.execute(CONTEXT)
            ended.append(None)
        except BaseException as e:
            ended.append(e)

    task = threading.Thread(target=execute)
    task.start()
    try:
        wait_until(lambda: bool(open_ids("killed")) or bool(ended), "an open transaction", 120)
        assert not ended
    finally:
        prepare.on_kill()
        task.join(60)
    assert isinstance(ended[0], AirflowException) and "StoppedError: prepare was told to stop" in str(ended[0])
    wait_until(lambda: open_ids("killed") == [], "the end of what was written")
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, "killed"))
    assert row.is_submitted and not row.is_prepared
    run("cleanup", "killed")
    assert committed_values(kafka.bootstrap_servers, name, 1) == []


def test_a_decorated_function_is_called_without_a_session(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    import pyarrow as pa

    name, called = topic(), []

    @exactly_once_load(topics=[name], engine="arrow", value_format="string")
    def rows(day: str) -> pa.Table:
        called.append(day)
        return pa.table({"n": [1, 2, 3]})

    with DAG("decorated", schedule=None, start_date=datetime(2026, 1, 1)):
        group: ExactlyOnceLoad = rows(day="2026-01-01")
    arguments = {"topics": [name], "job": group.prepare.job, "job_args": group.prepare.job_args}
    run("begin", "decorated")
    run("prepare", "decorated", engine="arrow", value_format="string", **arguments)
    finish("decorated")
    assert called == ["2026-01-01"]
    all_there_once(kafka, "decorated", name, 1, ["1", "2", "3"])
    arguments["job_args"] = group.prepare.job_args | {"group_id": "another"}
    run("begin", "another")
    text = refused("prepare", "another", engine="arrow", **arguments)
    assert "has no load 'another' of DAG 'decorated' when prepare's worker reads it" in text


def test_the_registry_is_asked_with_its_connections_login(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, secret = topic(), "registry-word-never-shown"
    given = {"topics": [name], "registry_conn_id": "of_schemas", "value_format": "confluent-json"} | job
    with running_registry(home) as url:
        gate = Gate(url, "user", secret)
        try:
            connection(monkeypatch, "of_schemas", "http", host=gate.url, login="user", password=f"not-{secret}")
            run("begin", "registered")
            said = refused("prepare", "registered", **given)
            assert "AccessError" in said and "HTTP 401" in said and secret not in said
            assert open_ids("registered") == []
            connection(monkeypatch, "of_schemas", "http", host=gate.url, login="user", password=secret)
            run("prepare", "registered", **given)
            asked = f"/subjects/{name}-value/versions"
            assert [line for line in gate.seen if line.startswith("POST") and asked in line]
        finally:
            gate.close()
    finish("registered")
    consumer_sees = committed_values(kafka.bootstrap_servers, name, 1)
    assert len({value[:5] for value in consumer_sees}) == 1 and consumer_sees[0][0] == "\0"
    assert [value[5:] for value in consumer_sees] == sorted(f'{{"value":"{value}"}}' for value in VALUES)


WITHOUT_PYSPARK = """
import importlib.util, json, sys
from datetime import datetime
assert importlib.util.find_spec("pyspark") is None
from airflow.sdk import DAG
from airflow_kafka_eos import ExactlyOnceLoad
from tests.airflow.steps import run, shares_its_broker

job, topic = sys.argv[1:]
with DAG("orders", schedule=None, start_date=datetime(2026, 1, 1)):
    ExactlyOnceLoad("load", job=job, topics=[topic], engine="arrow")
shares_its_broker()
run("begin", "bare")
made = run("prepare", "bare", topics=[topic], job=job, engine="arrow", value_format="json")
assert not [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j")]
print("prepared", json.dumps(made))
"""


def test_a_worker_without_pyspark_java_and_a_spark_connection_prepares(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], job: dict[str, Any]
) -> None:
    name = topic()
    bare = python_without(home / "venv", "pyspark", "py4j")
    environment = {k: v for k, v in os.environ.items() if k not in ("AIRFLOW_CONN_SPARK_DEFAULT", "JAVA_HOME")}
    done = subprocess.run(
        [bare, "-c", WITHOUT_PYSPARK, job["job"], name],
        env=environment | {"PATH": "/nonexistent"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("prepared ")]
    assert made["records"] == 100
    finish("bare")
    all_there_once(kafka, "bare", name, 1, [f'{{"value":"{value}"}}' for value in VALUES])
