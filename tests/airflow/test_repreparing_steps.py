"""What is lost and gone from the log comes back through Spark, by the operators and the packaged application."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.kafka.producer.interface import TopicLimits, WriteTarget
from airflow_kafka_eos.kafka.producer.writers import make_writer
from airflow_kafka_eos.kafka.records.digest import ALGORITHM
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionScope, Verdict
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.naming import TransactionalId, prefix
from airflow_kafka_eos.protocol.stages.begin import record_prepared as mark_prepared
from airflow_kafka_eos.protocol.stages.begin import reference, submit
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.transaction import Outcome
from tests.airflow.conftest import SECRET
from tests.airflow.repreparing_process import STEPS
from tests.airflow.steps import LOAD, OWNER, connection, open_ids, refused, run, session, state
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values

pytestmark = pytest.mark.spark

#: 8 Spark partitions of 50 rows, each into a Kafka partition of its own
EIGHT = (
    "select cast(id as string) key, 'v' || id value, cast(id div 50 as int) partition from range(0, 400, 1, 8)"
)
VALUES = sorted(f"v{n}" for n in range(400))
TWO = EIGHT.replace("400, 1, 8", "100, 1, 2")
HUNDRED = sorted(f"v{n}" for n in range(100))


def identity(key: str) -> LoadIdentity:
    return LoadIdentity("airflow", LOAD, key)


def prepared(home: Path, key: str, **arguments: Any) -> Manifest:
    run("begin", key)
    run("prepare", key, **arguments)
    with session() as opened:
        (row,) = opened.ledger.attempts(identity(key))
        return ManifestStore(str(home / "kafka_eos_manifests")).read(reference(opened, row))


def as_spark_would(home: Path, key: str, topic: str) -> Manifest:
    """What prepare makes of TWO, by the same writer in this process: starting Spark is what takes the time."""
    import pyarrow as pa

    from airflow_kafka_eos.hooks import KafkaEosHook

    run("begin", key)
    with session() as opened:
        ref = reference(opened, submit(opened, identity(key), owner=OWNER))
        topics = opened.partitions.topic_info([topic])
        settings, deadline_ms = KafkaEosHook().resolve().settings, int(time.time() * 1000) + 60_000
        entries = []
        for n in (0, 1):
            limits = {topic: TopicLimits(topics[topic].partitions, 1_000_000)}
            target = WriteTarget(ref.task_id(n, n), limits, topic, 600_000, deadline_ms)
            writer, ids = make_writer("arrow", settings, target), range(50 * n, 50 * n + 50)
            writer.open()
            rows = {"key": [str(i) for i in ids], "value": [f"v{i}" for i in ids]}
            writer.write(pa.RecordBatch.from_pydict(rows | {"partition": pa.array([n] * 50, pa.int32())}))
            entries.append(ManifestEntry(n, *writer.prepare()))
            writer.close()
        made = Manifest(
            ref, "2026-01-01T00:00:00+00:00", "arrow", TransactionScope.TASK, False, 600_000, ALGORITHM, topics,
            tuple(entries),
        )  # fmt: skip
        mark_prepared(opened, made)
    return made


def lose(kafka: LocalKafka, key: str, manifest: Manifest, *lost: int) -> None:
    """Decided, and some Spark partitions' transactions aborted before Kafka is told; then DeleteRecords takes them."""
    with session() as opened:
        decide(opened, manifest, Conditions(), owner=OWNER, margin_s=20)
        for n in lost:
            opened.coordinator.end(manifest.transactions[n], Verdict.ABORT)
        wait_until(lambda: not commit_pass(opened, identity(key), 1).open, "the commit of the others")
    ends: dict[tuple[str, int], int] = {}
    for w in (w for n in lost for w in manifest.entries[n].writes):
        ends[w.topic, w.partition] = max(w.last_offset + 1, ends.get((w.topic, w.partition), 0))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for done in admin.delete_records([ConfluentPartition(*tp, end) for tp, end in ends.items()]).values():
        done.result(30)


def all_there_once(kafka: LocalKafka, key: str, topic: str, partitions: int, values: list[str]) -> None:
    wait_until(lambda: open_ids(key) == [], "the end of what is open")
    assert committed_values(kafka.bootstrap_servers, topic, partitions) == values
    assert state(key) is LoadState.COMMITTED


def finish(key: str) -> None:
    run("decide", key)
    run("commit", key)


def test_one_lost_of_eight_is_prepared_again_and_only_that_one(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a password that this broker's listener does not ask for
    extra = {"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": SECRET}
    connection(monkeypatch, "kafka_default", "kafka", extra=extra)
    name = topic(8)
    manifest = prepared(home, "eight", topics=[name], sql=EIGHT)
    lose(kafka, "eight", manifest, 3)
    text = refused("commit", "eight")
    assert "RecordsGoneError: Spark partition 3 " in text and "Clear prepare" in text
    # the whole run is cleared, or only prepare: begin opens no attempt
    assert run("begin", "eight")["attempt"] == 1
    (home / "leaks.py").write_text(f"def load(spark):\n    raise ValueError('no login with {SECRET}')\n")
    with pytest.raises(AirflowException, match=r"no login with \*\*\*"):
        run("prepare", "eight", topics=[name], job=str(home / "leaks.py"))
    with session() as opened:
        failed = opened.ledger.repairs(identity("eight"))[-1]
    why = "the Spark application failed: ValueError: no login with ***"
    assert (failed.state, failed.reason) == (RepairState.UNDECIDABLE, why)
    ledger = list(home.glob("*ledger*.db*"))
    assert ledger != [] and not any(SECRET.encode() in file.read_bytes() for file in ledger)
    done = run("prepare", "eight", topics=[name], sql=EIGHT)
    assert (done["verdict"], done["prepared_again"], done["records"]) == ("commit", [3], 50)
    # a repair has a timeout, also where the load has none
    written = json.loads(Path(done["manifest"]).read_text())
    assert (manifest.two_phase_commit, written["two_phase_commit"]) == (True, False)
    finish("eight")
    all_there_once(kafka, "eight", name, 8, VALUES)
    with session() as opened:
        rows = opened.ledger.transactions(identity("eight"), 1)
        assert len(opened.ledger.attempts(identity("eight"))) == 1
    outcomes = [row.outcome for row in rows]
    assert (outcomes.count(Outcome.COMMITTED), outcomes.count(Outcome.SUPERSEDED)) == (8, 1)
    # what is committed already stays where it was written first
    (again,) = [row for row in rows if row.transaction not in manifest.transactions]
    assert again.spark_partition == 3
    assert run("prepare", "eight", topics=[name], sql=EIGHT) == {
        "load": str(identity("eight")), "attempt": 1, "verdict": "commit",
    }  # fmt: skip


def test_rows_without_a_key_go_where_they_went(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """Their places come of the Spark partition's number and of Arrow's batches; also with pooled ids."""
    name, sql = topic(3), "select 'v' || id value from range(0, 400, 1, 2)"
    manifest = prepared(home, "no keys", topics=[name], sql=sql, transaction_naming="pooling")
    lose(kafka, "no keys", manifest, 0, 1)
    done = run("prepare", "no keys", topics=[name], sql=sql, transaction_naming="pooling")
    assert done["prepared_again"] == [0, 1]
    finish("no keys")
    all_there_once(kafka, "no keys", name, 3, VALUES)


def test_a_changed_source_stops_with_both_digests_and_nothing_of_it_is_visible(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic(2)
    manifest = as_spark_would(home, "changed", name)
    lose(kafka, "changed", manifest, 1)
    before = committed_values(kafka.bootstrap_servers, name, 2)
    changed = TWO.replace("'v' || id", "if(id = 77, 'w', 'v') || id")
    text = refused("prepare", "changed", topics=[name], sql=changed)
    (w,) = manifest.entries[1].writes
    told = re.search(
        rf"Spark partition 1 had 50 records with digest {w.digest} in {name}-1, and has 50 records with digest "
        r"([0-9a-f]{32}) now",
        text,
    )
    assert told is not None and told[1] != w.digest, text
    assert "InDoubtError" in text and "give-up" in text
    wait_until(lambda: open_ids("changed") == [], "the end of the repair")
    run("cleanup", "changed")  # the teardown, always
    with session() as opened:
        row = opened.ledger.load(identity("changed"))
    assert (row.state, told[0] in row.reason) == (LoadState.IN_DOUBT, True)
    assert committed_values(kafka.bootstrap_servers, name, 2) == before
    assert len(before) == 50


@pytest.mark.parametrize("step", STEPS)
def test_killed_when(home: Path, kafka: LocalKafka, topic: Callable[..., str], step: str) -> None:
    name = topic(2)
    lose(kafka, "killed", as_spark_would(home, "killed", name), 1)
    with _process("killed", name, step) as died:
        assert died.wait(250) == -9
    left = open_ids("killed")
    assert len(left) == (0 if step == "its repairs are open" else 1)
    run("cleanup", "killed")
    wait_until(lambda: open_ids("killed") == [], "what cleanup ends, or rolls forward")
    done = run("prepare", "killed", topics=[name], sql=TWO)
    assert done.get("prepared_again") == (None if step == "it is adopted" else [1])
    finish("killed")
    all_there_once(kafka, "killed", name, 2, HUNDRED)


def test_of_two_prepares_at_once_one_is_adopted(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic(2)
    lose(kafka, "two", as_spark_would(home, "two", name), 1)
    with _process("two", name, "waits: Spark has written it") as slow:
        wait_until(lambda: Path("waits").exists() or slow.poll() is not None, "the other one's Spark", 250)
        assert slow.poll() is None and len(open_ids("two")) == 1
        assert run("prepare", "two", topics=[name], sql=TWO)["prepared_again"] == [1]
        Path("go").touch()
        assert slow.wait(60) == 0  # late, and no error: all of it is there
    finish("two")
    all_there_once(kafka, "two", name, 2, HUNDRED)


@contextmanager
def _process(key: str, topic: str, step: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.airflow.repreparing_process", key, topic, TWO, step]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()  # its Spark driver ends with it
        process.wait()


FAILING = """
def load(spark, fail):
    plain = spark.sql("select cast(id as string) key, 'v' || id || repeat('.', 9000) value from range(0, 300, 1, 2)")

    def once(batches):
        import os, time

        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            if number == 2 and fail and TaskContext.get().partitionId() == 1 and not os.path.exists(fail):
                open(fail, "w").close()
                end = time.monotonic() + 60
                while not os.path.exists(fail + "-now") and time.monotonic() < end:
                    time.sleep(0.05)
                raise ValueError("the first attempt of the task fails")
            yield batch

    return plain.mapInArrow(once, plain.schema)
"""


def test_a_task_that_is_retried_in_a_repair_has_an_id_of_its_own(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection(monkeypatch, "spark_default", "spark", host="local[2,2]", extra={"deploy-mode": "client"})
    (home / "job.py").write_text(FAILING)
    job: dict[str, Any] = {
        "topics": [topic(2)],
        "job": str(home / "job.py"),
        "conf": {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"},
    }

    def of_partition_1() -> set[str]:
        with session() as opened:
            listed = opened.coordinator.list_known(prefix(identity("retried"), opened.ledger.ledger_id))
        return {i for i in listed if (p := TransactionalId.parse(i)) and p.spark_partition == 1}

    manifest = prepared(home, "retried", job_args={"fail": ""}, **job)
    lose(kafka, "retried", manifest, 0, 1)
    known = of_partition_1()

    def fail_with_an_id() -> None:
        """The task's first attempt: its writer starts in a Python process of its own."""
        wait_until(lambda: bool(of_partition_1() - known), "the first attempt's id", 150)
        (home / "failed-now").touch()

    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(fail_with_an_id)
        done = run("prepare", "retried", job_args={"fail": str(home / "failed")}, **job)
        failing.result()
    assert ((home / "failed").exists(), done["prepared_again"]) == (True, [0, 1])
    assert len(tried := of_partition_1() - known) == 2, tried
    finish("retried")
    values = sorted(f"v{n}" + "." * 9000 for n in range(300))
    all_there_once(kafka, "retried", job["topics"][0], 2, values)
