"""``df.write.format("kafka_eos")``, and the packaged application's own write, on a real Spark and a real broker."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_eos.errors import BrokerUnavailableError, ManifestError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records.digest import ALGORITHM, PartitionDigest
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.spark import writing
from tests.spark.writing import Write, by_data_source, id_of, visible

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(params=[writing.write, by_data_source], ids=["application", "data-source"])
def write(request: pytest.FixtureRequest) -> Write:
    """Both ways must have the same outcome."""
    way: Write = request.param
    return way


@pytest.fixture
def failure(write: Write) -> Callable[[DataFrame, Mapping[str, str]], str]:
    return functools.partial(writing.failure, write=write)


ROWS = "select cast(id as string) key, concat('v', id) value from range(0, 300, 1, 3)"


def test_a_write_leaves_prepared_transactions_and_a_manifest(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    ref: AttemptRef, settings: KafkaSettings, tmp_path: Path, write: Write,
) -> None:
    name = topic(3)
    write(spark.sql(ROWS), options(topic=name))
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.records == 300
    assert [e.spark_partition for e in manifest.entries] == [0, 1, 2]
    assert manifest.digest_algorithm == ALGORITHM
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        seen = coordinator.describe(t.transactional_id for t in manifest.transactions)
        for entry in manifest.entries:
            assert entry.transaction is not None
            description = seen[entry.transaction.transactional_id]
            assert description.coordinator_state.value == "Ongoing"
            assert description.state == entry.transaction.state
            assert description.partitions == {w.topic_partition for w in entry.writes}
        for transaction in manifest.transactions:
            coordinator.end(transaction, Verdict.COMMIT)
    assert sorted(visible(kafka, name, 3, 300)) == sorted((b"%d" % i, b"v%d" % i) for i in range(300))


def test_all_columns_are_taken_and_empty_partitions_open_nothing(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    still_open: Callable[[], list[str]], tmp_path: Path, write: Write,
) -> None:
    one, two = topic(1), topic(2)
    frame = spark.sql(f"""
        select cast('k' as binary) key, cast(null as binary) value, 1 partition, '{two}' topic,
               array(named_struct('key', 'h', 'value', cast('x' as binary))) headers
        from range(0, 3, 1, 3) where id = 1""")
    write(frame, options(topics=f"{one},{two}"))
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert [e.records for e in manifest.entries] == [0, 1, 0]
    assert [e.transaction is None for e in manifest.entries] == [True, False, True]
    (writes,) = manifest.entries[1].writes
    assert (writes.topic, writes.partition, writes.records) == (two, 1, 1)
    digest = PartitionDigest()
    digest.update(b"k", None, [("h", b"x")])
    assert writes.digest == digest.hexdigest()
    assert len(still_open()) == 1


def test_scope_load_is_refused_where_a_stage_may_run_twice(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    still_open: Callable[[], list[str]], failure: Callable[[DataFrame, Mapping[str, str]], str],
) -> None:
    """This session allows it. A Python task could not see that it happens (rule: scope-load-writes-once)."""
    frame = spark.sql("select 'v' value, 0 partition from range(0, 1, 1, 1)")
    found = failure(frame, options(topic=topic(1), transaction_scope="load"))
    assert found.startswith("ConfigurationError: spark.stage.maxConsecutiveAttempts is not set"), found
    assert still_open() == []


@pytest.mark.parametrize("partitions", [0, 2])
def test_an_empty_dataframe_is_a_load_of_no_records(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    still_open: Callable[[], list[str]], tmp_path: Path, partitions: int, write: Write,
) -> None:
    frame = (
        spark.createDataFrame(spark.sparkContext.emptyRDD(), "value string")
        if not partitions
        else spark.sql(f"select 'v' value from range(0, 2, 1, {partitions}) where id < 0")
    )
    write(frame, options(topic=topic(1)))
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.records == 0
    assert not manifest.transactions
    assert not still_open()


BAD = {
    "no key and no value": ("select 'orders' topic", {}, "neither a value nor a key column"),
    "column type": ("select 1 value", {}, "column 'value' has type int, allowed is binary or string"),
    "headers type": (
        "select 'v' value, map('a', 'b') headers",
        {},
        "column 'headers' has type map<string,string>",
    ),
    "partition type": (
        "select 'v' value, 1L partition",
        {},
        "column 'partition' has type bigint, allowed is int",
    ),
    "unknown column": ("select 'v' value, 'k' keys", {}, "a column 'keys'"),
    "missing topic": ("select 'v' value", {"topic": "nowhere"}, "TopicError: topic nowhere does not exist"),
    "hold time": (
        "select 'v' value",
        {"transaction_timeout_ms": "999999999", "transaction_two_phase_commit": "off"},
        "transaction.max.timeout.ms",
    ),
    "unknown option": (
        "select 'v' value",
        {"transaction_timeout": "60000"},
        "ConfigurationError: the option transaction.timeout of kafka_eos is unknown. Did you mean",
    ),
    "secret": ("select 'v' value", {"kafka_sasl_password": "hunter2"}, "AIRFLOW_KAFKA_EOS_KAFKA"),
    "unknown partition": ("select 'v' value, 9 partition", {}, "RecordError: a row asks for partition 9"),
    "null topic": (
        "select 'v' value, string(null) topic",
        {"topic": "", "topics": "TOPIC,OTHER"},
        "column is null",
    ),
    "too large": ("select repeat('v', 5000) value", {}, "RecordError: a record without key of 5000 bytes"),
    "deadline": ("select 'v' value", {"deadline_ms": "1"}, "UndecidableError: the deadline"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_nothing_stays_open(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    still_open: Callable[[], list[str]], tmp_path: Path, case: str,
    failure: Callable[[DataFrame, Mapping[str, str]], str],
) -> None:
    sql, changes, message = BAD[case]
    name, other = topic(2, config={"max.message.bytes": "4000"}), topic(1)
    changes = {k: v.replace("TOPIC", name).replace("OTHER", other) for k, v in changes.items()}
    # good rows come first: a transaction is open when the bad one is met
    frame = spark.sql(sql)
    if case in ("unknown partition", "null topic", "too large"):
        good = frame.selectExpr(
            "'g' value",
            *(["0 partition"] if "partition" in sql else []),
            *([f"'{name}' topic"] if "topic" in sql else []),
        )
        frame = good.union(frame).coalesce(1)
    found = failure(frame, options(**{"topic": name} | changes))
    assert message in found
    assert "hunter2" not in found
    assert not still_open()
    with pytest.raises(ManifestError):
        ManifestStore(str(tmp_path)).read(ref)


def test_overwrite_is_refused(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]]
) -> None:
    overwrite = functools.partial(by_data_source, mode="overwrite")
    assert "append" in writing.failure(spark.sql(ROWS), options(topic=topic(1)), write=overwrite)


def test_a_broker_that_is_not_there_is_said_so(options: Callable[..., dict[str, str]]) -> None:
    given = WriteOptions.parse(options(kafka_bootstrap_servers="127.0.0.1:1", topic="t"))
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1"):
        check_cluster(given.settings({}), given, timeout_s=1)


def test_the_same_attempt_is_written_once(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], write: Write,
    failure: Callable[[DataFrame, Mapping[str, str]], str],
) -> None:
    # rule: one-application-per-attempt
    given = options(topic=topic(1))
    write(spark.sql(ROWS), given)
    assert "UndecidableError: the attempt was already claimed" in failure(spark.sql(ROWS), given)


def test_one_application_writes_once(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    still_open: Callable[[], list[str]], tmp_path: Path, write: Write,
    failure: Callable[[DataFrame, Mapping[str, str]], str],
) -> None:
    # its claim is good for one manifest; a second write could only leave transactions behind
    ManifestStore(str(tmp_path)).claim(ref, "me")
    given = options(topic=topic(1), load_claim="me")
    write(spark.sql(ROWS), given)
    before = still_open()
    found = failure(spark.sql(ROWS), given)
    assert "UndecidableError: this application has written the attempt once already" in found
    assert "Write one DataFrame per application" in found
    assert still_open() == before


def test_a_write_under_anothers_claim_is_refused(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    tmp_path: Path, failure: Callable[[DataFrame, Mapping[str, str]], str],
) -> None:
    ManifestStore(str(tmp_path)).claim(ref, "driver one")
    assert "claimed by driver one" in failure(
        spark.sql(ROWS), options(topic=topic(1), load_claim="driver two")
    )


def all_committed_once(
    kafka: LocalKafka, name: str, manifest: Manifest, settings: KafkaSettings, ref: AttemptRef,
    still_open: Callable[[], list[str]], records: int, value: bytes = b"v",
) -> list[TransactionalId]:
    """Commit what the manifest has; whoever lost is ended as cleanup does; each record is there once."""
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        for transaction in manifest.transactions:
            coordinator.end(transaction, Verdict.COMMIT)
        losers = coordinator.describe(still_open())
        for loser in losers.values():
            coordinator.end(PreparedTransaction(loser.transactional_id, loser.state), Verdict.ABORT)
    found = visible(kafka, name, 2, records)
    assert sorted(found) == sorted((b"%d" % i, value) for i in range(records))
    return [id_of(i) for i in losers]


def test_a_retried_task_gets_an_id_of_its_own_and_only_one_attempt_counts(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    ref: AttemptRef, settings: KafkaSettings, still_open: Callable[[], list[str]], tmp_path: Path,
    write: Write,
) -> None:
    # rule: id-per-task-attempt; a sibling task attempt never ends in the log twice
    def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, part in enumerate(batches):
            if number == 1 and context.partitionId() == 1 and context.attemptNumber() == 0:
                raise ValueError("first attempt fails, after rows have gone out")
            yield part

    name = topic(2)
    frame = spark.sql("select cast(id as string) key, 'v' value from range(0, 600, 1, 3)")
    write(frame.mapInArrow(failing_once, frame.schema), options(topic=name))
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.records == 600
    ids = [id_of(t.transactional_id).task_attempt_id for t in manifest.transactions]
    assert len(set(ids)) == 3
    losers = all_committed_once(kafka, name, manifest, settings, ref, still_open, 600)
    assert {loser.spark_partition for loser in losers} <= {1}
    assert not {loser.task_attempt_id for loser in losers} & set(ids)


def test_a_killed_task_attempt_is_not_in_the_manifest(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    ref: AttemptRef, settings: KafkaSettings, still_open: Callable[[], list[str]], tmp_path: Path,
    write: Write,
) -> None:
    # as Spark kills the slower one of two speculative attempts (it does not speculate on one host)
    marks = str(tmp_path)

    def slow_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, part in enumerate(batches):
            if number == 3 and context.partitionId() == 1 and context.attemptNumber() == 0:
                with open(os.path.join(marks, "task"), "w") as file:
                    file.write(str(context.taskAttemptId()))
                time.sleep(60)  # killed in here
            yield part

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                task = int((tmp_path / "task").read_text())
            except (FileNotFoundError, ValueError):
                time.sleep(0.1)
                continue
            loser = str(TransactionalId(ref.load, ref.ledger_id, 1, 1, task))
            if loser in still_open():
                killed.append(task)
                spark.sparkContext._jsc.sc().killTaskAttempt(task, True, "lost the race")
                return

    killed: list[int] = []
    name = topic(2)
    frame = spark.sql("select cast(id as string) key, repeat('v', 9000) value from range(0, 400, 1, 2)")
    thread = threading.Thread(target=kill)
    thread.start()
    # small batches: they are on their way before the task is killed
    write(frame.mapInArrow(slow_at_first, frame.schema), options(topic=name, kafka_batch_size="1000"))
    thread.join()
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.records == 400
    accepted = {id_of(t.transactional_id).task_attempt_id for t in manifest.transactions}
    losers = all_committed_once(kafka, name, manifest, settings, ref, still_open, 400, b"v" * 9000)
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        loser = str(TransactionalId(ref.load, ref.ledger_id, 1, 1, killed[0]))
        print("\nlosers", losers, coordinator.describe([loser]))
    assert killed
    assert not accepted & set(killed)
    assert {loser.task_attempt_id for loser in losers} <= set(killed)


def test_a_failed_write_is_given_up_and_what_was_reported_is_aborted(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    still_open: Callable[[], list[str]], tmp_path: Path, write: Write,
) -> None:
    go = str(tmp_path / "go")

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for part in batches:
            end = time.monotonic() + 60
            while context.partitionId() == 1 and time.monotonic() < end:
                if os.path.exists(go):
                    raise ValueError("always fails")
                time.sleep(0.1)
            yield part

    def let_it_fail_when_the_other_has_reported() -> None:
        tracker, end = spark.sparkContext.statusTracker(), time.monotonic() + 60
        while time.monotonic() < end:
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numCompletedTasks == 1:
                    (tmp_path / "go").touch()
                    return
            time.sleep(0.1)

    frame = spark.sql("select cast(id as string) key, 'v' value from range(0, 100, 1, 2)")
    thread = threading.Thread(target=let_it_fail_when_the_other_has_reported)
    thread.start()
    with pytest.raises(Exception, match="always fails"):
        write(frame.mapInArrow(failing, frame.schema), options(topic=topic(1)))
    thread.join()
    with pytest.raises(ManifestError, match="prepare gave this attempt up"):
        ManifestStore(str(tmp_path)).read(ref)
    assert not still_open()


def test_when_the_manifest_fails_nothing_is_ended(
    spark: SparkSession, topic: Callable[..., str], options: Callable[..., dict[str, str]], ref: AttemptRef,
    still_open: Callable[[], list[str]], tmp_path: Path,
    failure: Callable[[DataFrame, Mapping[str, str]], str],
) -> None:
    # commit raises, Spark calls abort with all messages; nobody knows what decide has seen
    store = ManifestStore(str(tmp_path))
    store.claim(ref, "me")
    store._create(ref, "writing", "")
    assert "ManifestError" in failure(spark.sql(ROWS), options(topic=topic(1), load_claim="me"))
    assert len(still_open()) == 3
