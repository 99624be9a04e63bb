"""Scope ``load`` in Spark: one transaction of all tasks, or none (rule: scope-load-writes-once)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assignment
from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef, Manifest, ManifestEntry
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.datasource import KafkaEosWriter, PreparedPartition
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.no_retries import ONE_RUN
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.preflight import check_cluster
from airflow_kafka_eos.spark.scope import own_partitions
from tests.spark.conftest import spark_environment
from tests.spark.lost_shuffle import lose_shuffle
from tests.spark.writing import failure, visible, write

pytestmark = [pytest.mark.broker, pytest.mark.spark]

#: 400 records of 40 keys, some without a key, some with a partition of their own, in two topics
ROWS = """
    select if(id % 10 = 9, null, concat('key ', id % 40)) key, concat('v', id) value,
           if(id % 4 = 3, '{two}', '{one}') topic, if(id % 100 = 50, 2, null) partition
    from range(0, 400, 1, 3)"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """local[2,2]: a failed task is tried once more, and refused; what else scope load wants of Spark is set."""
    from pyspark.sql import SparkSession

    from airflow_kafka_eos.spark.datasource import KafkaEosDataSource

    os.environ.update(spark_environment())
    builder = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false")
    for key, value in ONE_RUN.items():
        builder = builder.config(key, value)
    session = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "50").getOrCreate()
    session.dataSource.register(KafkaEosDataSource)
    yield session
    session.stop()


@pytest.fixture
def load_options(options: Callable[..., dict[str, str]]) -> Callable[..., dict[str, str]]:
    return lambda **changes: options(transaction_scope="load", **changes)


def arranged(frame: DataFrame, given: Mapping[str, str]) -> None:
    write(own_partitions(frame, given), given)


def end(settings: KafkaSettings, manifest: Manifest, verdict: Verdict = Verdict.COMMIT) -> None:
    ref = manifest.attempt
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        for transaction in manifest.transactions:
            coordinator.end(transaction, verdict)


def placed(
    kafka: LocalKafka, topics: Mapping[str, int], count: int
) -> dict[tuple[str | None, int | None, bytes | None], list[bytes]]:
    """Values by (topic, partition, key), in the log's order, of ``count`` records."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "x", "isolation.level": "read_committed"}
    )
    consumer.assign([Assignment(t, p, 0) for t, n in topics.items() for p in range(n)])
    found = defaultdict[tuple[str | None, int | None, bytes | None], list[bytes]](list)
    read = 0
    while read < count:
        message = consumer.poll(20)
        assert message is not None, f"{read} of {count} records"
        assert not message.error(), message.error()
        found[message.topic(), message.partition(), message.key()].append(message.value() or b"")
        read += 1
    consumer.close()
    return found


def test_an_older_spark_moves_no_rows_and_says_so_before_anything_is_written(
    spark: SparkSession, topic: Callable[..., str], load_options: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    given = load_options(topic=topic(2))
    keyed = spark.sql("select cast(id as string) key, 'v' value from range(10)")
    with pytest.raises(ConfigurationError, match=r"transaction scope load, of rows .* needs Spark 4\.1 or newer"):
        own_partitions(keyed, given)
    assert own_partitions(keyed.coalesce(1).select("value"), given).count() == 10, "what need not move is taken"


def test_all_tasks_write_one_transaction_and_one_end_shows_all_of_it(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    load_options: Callable[..., dict[str, str]], ref: AttemptRef, settings: KafkaSettings,
    still_open: Callable[[], list[str]], tmp_path: Path,
) -> None:
    one, two = topic(4), topic(3)
    given = load_options(topics=f"{one},{two}")
    arranged(spark.sql(ROWS.format(one=one, two=two)), given)
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert (manifest.records, manifest.scope.value, manifest.writer) == (400, "load", "arrow")
    assert manifest.two_phase_commit  # the sandbox's broker grants it
    assert [e.spark_partition for e in manifest.entries] == list(range(7))
    (prepared,) = manifest.prepared
    assert still_open() == [prepared.transaction.transactional_id]
    assert prepared.transaction.transactional_id.endswith(".1-load")
    end(settings, manifest)
    in_load = placed(kafka, {one: 4, two: 3}, 400)
    assert sorted(v for values in in_load.values() for v in values) == sorted(b"v%d" % i for i in range(400))
    # rows of one task keep their order, and all of a key's first 40 multiples are in one task of range()
    first = [v for (_, _, key), values in in_load.items() if key == b"key 0" for v in values]
    assert [v for v in first if int(v[1:]) < 134] == [b"v0", b"v40", b"v80", b"v120"]

    # the same record has the same partition in scope task
    other = options(topics=f"{one},{two}", writer="arrow") | {"load.key": "in scope task"}
    write(spark.sql(ROWS.format(one=one, two=two)), other)
    manifest = ManifestStore(str(tmp_path)).read(WriteOptions.parse(other).attempt)
    assert (manifest.scope.value, len(manifest.transactions)) == ("task", 3)
    end(settings, manifest)
    both = placed(kafka, {one: 4, two: 3}, 800)
    for place, values in in_load.items():
        if place[2] is not None:
            assert sorted(both[place]) == sorted(values * 2), place


@pytest.mark.parametrize(("tasks", "wanted"), [(1, 1), (3, 3), (4, 4), (9, 4)])
def test_rows_without_a_key_are_not_moved(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], load_options: Callable[..., dict[str, str]],
    ref: AttemptRef, settings: KafkaSettings, tmp_path: Path, tasks: int, wanted: int,
) -> None:
    one = topic(4)
    given = load_options(topic=one)
    frame = own_partitions(spark.sql(f"select concat('v', id) value from range(0, 400, 1, {tasks})"), given)
    assert "Exchange" not in frame._jdf.queryExecution().executedPlan().toString()
    write(frame, given)
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert [e.spark_partition for e in manifest.entries] == list(range(wanted))
    assert manifest.records == 400
    end(settings, manifest)
    found = placed(kafka, {one: 4}, 400)
    assert sorted(v for values in found.values() for v in values) == sorted(b"v%d" % i for i in range(400))
    # in turn: no partition has many more than another, whatever the number of tasks
    counts = sorted(len(values) for values in found.values())
    assert len(counts) == 4
    assert counts[0] >= 400 // max(4, wanted) // 2


@pytest.mark.parametrize(
    "rows",
    [
        "select distinct concat('v', id) value from range(0, 400, 1, 3)",  # how many tasks, adaptive execution says
        "select concat('v', id) value, cast(null as string) key from range(0, 400, 1, 3)",
        "select concat('v', id) value, 2 partition from range(0, 400, 1, 3)",
    ],
)
def test_all_others_go_through_a_shuffle(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], load_options: Callable[..., dict[str, str]],
    ref: AttemptRef, settings: KafkaSettings, tmp_path: Path, rows: str,
) -> None:
    one = topic(4)
    given = load_options(topic=one)
    frame = own_partitions(spark.sql(rows), given)
    assert "Exchange" in frame._jdf.queryExecution().executedPlan().toString()
    write(frame, given)
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert [e.spark_partition for e in manifest.entries] == list(range(4))
    end(settings, manifest)
    found = placed(kafka, {one: 4}, 400)
    assert sorted(v for values in found.values() for v in values) == sorted(b"v%d" % i for i in range(400))


def test_few_owners_do_not_slow_down_the_rest_of_the_plan(
    spark: SparkSession, topic: Callable[..., str], load_options: Callable[..., dict[str, str]]
) -> None:
    """One owner for nine tasks on two cores: they compute side by side, and hand their rows over."""
    frame = own_partitions(spark.sql("select 'v' value from range(0, 400, 1, 9)"), load_options(topic=topic(1)))
    assert "Exchange" in frame._jdf.queryExecution().executedPlan().toString()


def test_one_task_may_own_many_partitions(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str],
    load_options: Callable[..., dict[str, str]], ref: AttemptRef, settings: KafkaSettings, tmp_path: Path,
) -> None:
    name = topic(5)
    given = load_options(topic=name, transaction_tasks="2")
    arranged(spark.sql("select cast(id as string) key, 'v' value from range(0, 200, 1, 3)"), given)
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert [sorted(w.partition for w in e.writes) for e in manifest.entries] == [[0, 2, 4], [1, 3]]
    end(settings, manifest)
    assert len(visible(kafka, name, 5, 200)) == 200


def test_an_empty_dataframe_opens_no_transaction(
    spark: SparkSession, topic: Callable[..., str], load_options: Callable[..., dict[str, str]],
    ref: AttemptRef, still_open: Callable[[], list[str]], tmp_path: Path,
) -> None:
    given = load_options(topic=topic(2))
    arranged(spark.sql("select cast(id as string) value from range(0)"), given)
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert (manifest.prepared, [e.transaction for e in manifest.entries]) == ((), [None, None])
    assert still_open() == []


def test_rows_that_are_not_arranged_are_refused_and_nothing_stays_open(
    spark: SparkSession, topic: Callable[..., str], load_options: Callable[..., dict[str, str]],
    still_open: Callable[[], list[str]],
) -> None:
    frame = spark.sql("select 'v' value, 1 partition from range(0, 9, 1, 1)")
    found = failure(frame, load_options(topic=topic(2)))
    assert "Spark has run task 0 before" in found  # what ends the second run that this session allows
    assert still_open() == []


def test_rows_arranged_for_fewer_partitions_are_refused(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str],
    load_options: Callable[..., dict[str, str]], still_open: Callable[[], list[str]],
) -> None:
    """Their keys would be where no client looks for them, and nothing else would tell."""
    from confluent_kafka.admin import AdminClient, NewPartitions

    name = topic(2)
    given = load_options(topic=name)
    frame = own_partitions(spark.sql("select cast(id as string) key, 'v' value from range(0, 9, 1, 1)"), given)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(name, 3)])[name].result()
    found = failure(frame, given)
    assert f"arranged for topics with these partitions: {{'{name}': 2}}; now they have {{'{name}': 3}}" in found
    assert still_open() == []


def test_a_task_that_runs_a_second_time_writes_nothing_and_nothing_stays_open(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str],
    load_options: Callable[..., dict[str, str]], ref: AttemptRef, still_open: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    name, files = topic(2), str(tmp_path / "ran")
    os.mkdir(files)

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        open(f"{files}/{context.partitionId()}-{context.attemptNumber()}", "w").close()
        for n, batch in enumerate(batches):
            yield batch
            if n == 5 and context.partitionId() == 0 and context.attemptNumber() == 0:
                time.sleep(2)  # some of it has gone out
                raise OSError("this executor has a bad day")

    given = load_options(topic=name)
    frame = own_partitions(spark.sql("select cast(id as string) key, repeat('v', 9000) value from range(1000)"), given)
    found = failure(frame.mapInArrow(fail_once, frame.schema), given)
    assert found.startswith("UndecidableError: Spark has run task 0 before"), found
    assert still_open() == []
    with pytest.raises(Exception, match="gave this attempt up"):
        ManifestStore(str(tmp_path)).read(ref)
    assert visible(kafka, name, 2, 1) == []


def test_a_stage_whose_input_is_lost_fails_the_attempt_and_nothing_stays_open(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str],
    load_options: Callable[..., dict[str, str]], ref: AttemptRef, still_open: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    """A true fetch failure, as in test_stage_retry: there the stage runs again, here it must not."""
    name, lost = topic(1), lose_shuffle(spark, tmp_path / "lost", "0 partition")
    with pytest.raises(Exception, match=r"FetchFailed|maximum allowable number of times"):
        write(lost.frame, load_options(topic=name))
    assert len(lost.runs()) == 1, "the stage was run again"
    assert still_open() == []
    assert visible(kafka, name, 1, 1) == []


def test_a_session_that_may_run_a_stage_twice_is_refused(
    spark: SparkSession, topic: Callable[..., str], load_options: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before a task runs by own_partitions; in the tasks for those who arrange by themselves."""
    given = load_options(topic=topic(1))
    frame = spark.sql("select 'v' value, 0 partition from range(1)").coalesce(1)
    for key, value in (
        ("spark.stage.maxConsecutiveAttempts", "4"),
        ("spark.stage.ignoreDecommissionFetchFailure", "true"),
        ("spark.speculation", "true"),
    ):
        local = spark.newSession()
        local._jsparkSession.sessionState().conf().setConfString(key, value)
        with pytest.raises(Exception, match=key):
            own_partitions(local.sql("select 'v' value from range(1)"), given)
    assert own_partitions(frame, given).count() == 1
    # a session may show what its context, made before, does not have: the scheduler goes by the context
    from pyspark import SparkConf

    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: SparkConf(False))
    with pytest.raises(ConfigurationError, match="maxConsecutiveAttempts is not set"):
        own_partitions(frame, given)


def test_the_driver_believes_no_message_of_a_second_run(
    topic: Callable[..., str], load_options: Callable[..., dict[str, str]], settings: KafkaSettings,
    ref: AttemptRef,
) -> None:
    given = WriteOptions.parse(load_options(topic=topic(1)))
    writer = KafkaEosWriter(given, settings, check_cluster(settings, given))
    with pytest.raises(UndecidableError, match="Spark has run task 0 before"):
        writer.commit([PreparedPartition(ManifestEntry(0, None, ()), attempt_number=1)])
