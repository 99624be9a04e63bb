"""Queries in one driver: batches that come again, rows that differ, tasks that fail, and ``foreachBatch``."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages import batches
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark import versions
from airflow_kafka_eos.streams import application, driver, foreach
from airflow_kafka_eos.streams.foreach import exactly_once
from airflow_kafka_eos.streams.options import OPENED_BY, StreamOptions
from airflow_kafka_eos.streams.source import KafkaEosStreams
from airflow_kafka_eos.streams.spec import StreamSpec
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values
from tests.spark.conftest import spark_environment
from tests.streams.noting import NotingStreams, notes

pytestmark = [pytest.mark.broker, pytest.mark.spark]

NAMESPACE = "queries"
#: so many rows come with each batch
ROWS = 20


@pytest.fixture(scope="module")
def ledger_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('queries')}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    return url


@pytest.fixture(scope="module")
def spark(ledger_url: str) -> Iterator[SparkSession]:
    """Tasks may fail once. Spark's Python processes get the JVM's environment, and the JVM this one's."""
    os.environ.update(spark_environment() | {"AIRFLOW_KAFKA_EOS_LEDGER": ledger_url})
    session = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.stage.maxConsecutiveAttempts", "1")
        .config("spark.stage.ignoreDecommissionFetchFailure", "false")
        .getOrCreate()
    )
    session.dataSource.register(KafkaEosStreams)
    yield session
    session.stop()
    del os.environ["AIRFLOW_KAFKA_EOS_LEDGER"]


@dataclass
class Query:
    """A query of files: each file is a batch, whose rows are its lines."""

    spark: SparkSession
    kafka: LocalKafka
    topic: str
    name: str
    folder: Path
    ledger_url: str

    def file(self, number: int) -> None:
        """The next batch's rows."""
        lines = [f"v{number * ROWS + n:03}" for n in range(ROWS)]
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        (self.folder / "new").write_text("\n".join(lines))
        (self.folder / "new").rename(source / f"{number}.txt")

    @property
    def options(self) -> dict[str, str]:
        return {
            "checkpointLocation": str(self.folder / "checkpoint"),
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "topic": self.topic,
            "load.namespace": NAMESPACE,
        }

    def run(
        self,
        change: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        mode: str = "append",
        each: Callable[[DataFrame, int], None] | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
        sink: str = "kafka_eos",
    ) -> None:
        """To the end of what is there, batch by batch.

        :raises StreamingQueryException: a batch failed.
        """
        rows = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.folder / "source"))
        writer = change(rows).writeStream.queryName(self.name).trigger(availableNow=True).outputMode(mode)
        if each is None:
            writer = writer.format(sink).options(**self.options | dict(options))
        else:
            writer = writer.foreachBatch(each).option("checkpointLocation", self.options["checkpointLocation"])
        query = writer.start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget(self, batch: int) -> None:
        """As if the driver had died before it noted the batch as done."""
        for file in (self.folder / "checkpoint" / "commits").glob(f"*{batch}*"):
            file.unlink()

    @property
    def slots(self) -> list[int]:
        """That were ever used."""
        with Ledger.open(self.ledger_url) as ledger:
            return [slot.number for slot in ledger.slots(NAMESPACE, self.name)]

    def nothing_open(self) -> None:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": self.kafka.bootstrap_servers})
        with connect(settings, self.ledger_url, NAMESPACE) as session:
            wait_until(lambda: session.coordinator.list_open(session.id_prefix) == [], "the end of what was open")

    def values(self) -> list[str]:
        return committed_values(self.kafka.bootstrap_servers, self.topic, 2)

    def is_all(self, batches: int) -> bool:
        """Each row of so many batches is there once, and nothing is open."""
        self.nothing_open()
        return self.values() == [f"v{n:03}" for n in range(batches * ROWS)]


@pytest.fixture
def query(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], tmp_path: Path, ledger_url: str,
    request: pytest.FixtureRequest,
) -> Query:  # fmt: skip
    made = Query(spark, kafka, topic(2), request.node.name.removeprefix("test_"), tmp_path, ledger_url)
    for number in range(2):
        made.file(number)
    return made


def test_batches_come_on_and_one_slot_is_used_again(query: Query) -> None:
    query.run()
    assert query.is_all(2)
    query.file(2)
    query.run()
    assert query.is_all(3)
    with Ledger.open(query.ledger_url) as ledger:
        row = ledger.stream(NAMESPACE, query.name)
        assert row is not None and (row.decided, row.newest_run) == (2, 1)
    assert query.slots == [0], "by these settings no task is run twice, so the slot is free at once"


def test_a_querys_python_processes_keep_what_the_next_batch_wants(query: Query) -> None:
    query.spark.dataSource.register(NotingStreams)
    query.run(sink="noting")
    assert query.is_all(2)
    files = notes(query.options["checkpointLocation"]).iterdir()
    found = {file.name.partition("-")[0]: int(file.read_text()) for file in files}
    assert found.pop("wires") == 1  # the next batch's task goes on with it
    assert set(found) == {"begin", "task", "end"} and min(found.values()) > 10_000


def test_a_slot_rests_where_spark_may_run_a_stage_again(query: Query) -> None:
    SparkSession.builder.config("spark.stage.maxConsecutiveAttempts", "4").getOrCreate()
    try:
        query.run()
    finally:
        SparkSession.builder.config("spark.stage.maxConsecutiveAttempts", "1").getOrCreate()
    assert query.is_all(2)
    assert query.slots == [0, 1]


def test_a_batch_that_comes_again_is_told_as_done(query: Query) -> None:
    query.run()
    query.forget(1)
    query.run()
    assert query.is_all(2)
    assert (query.folder / "checkpoint" / "commits" / "1").exists()


def test_a_batch_that_comes_again_with_other_rows_is_not_told_as_done(query: Query) -> None:
    query.run()
    query.forget(1)
    # of whichever file has come second
    fewer: Callable[[DataFrame], DataFrame] = lambda rows: rows.where("value NOT IN ('v001', 'v021')")  # noqa: E731
    with pytest.raises(StreamingQueryException, match="committed with 20 records, and now its sources give 19 rows"):
        query.run(fewer)
    assert not (query.folder / "checkpoint" / "commits" / "1").exists()
    query.run(fewer, options={"stream.replay": "trust"})
    assert query.is_all(2)


def test_a_deleted_checkpoint_is_refused_and_so_is_a_copy(query: Query) -> None:
    query.run()
    checkpoint = query.folder / "checkpoint"
    shutil.copytree(checkpoint, query.folder / "copy")
    query.file(2)
    with pytest.raises(StreamingQueryException, match="a copy of it"):
        query.run(options={"checkpointLocation": str(query.folder / "copy")})
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match="the checkpoint was deleted"):
        query.run()
    assert query.is_all(2)


def test_an_output_mode_that_rewrites_is_refused(query: Query) -> None:
    with pytest.raises(Exception, match=r"cannot rewrite|complete|Complete"):
        query.run(lambda rows: rows.groupBy("value").count().select("value"), mode="complete")
    assert query.values() == []


def test_a_task_that_fails_once_is_run_again_and_its_rows_are_there_once(query: Query) -> None:
    from pyspark.sql.functions import udf

    mark = str(query.folder / "failed")

    @udf("string")
    def fails_once(value: str) -> str:
        if value in ("v005", "v025") and not os.path.exists(mark):
            Path(mark).touch()
            raise ValueError("this once")
        return value

    query.run(lambda rows: rows.select(fails_once("value").alias("value")))
    assert Path(mark).exists()
    assert query.is_all(2)
    assert query.slots == [0, 1], "the first run of that task may still write"


def test_what_a_batch_has_written_that_fails_is_ended_at_once(query: Query) -> None:
    from pyspark.sql.functions import udf

    @udf("string")
    def fails(value: str) -> str:
        if value in ("v005", "v025"):
            time.sleep(4)  # the other task has written by then
            raise ValueError("for good")
        return value

    with pytest.raises(StreamingQueryException, match="for good"):
        query.run(lambda rows: rows.repartition(2).select(fails("value").alias("value")))
    query.nothing_open()
    with Ledger.open(query.ledger_url) as ledger:
        (load,) = [one.load for one in ledger.loads(NAMESPACE) if one.load.name == query.name]
        (row,) = ledger.attempts(load)
    assert row.verdict is Verdict.ABORT
    query.run()
    assert query.is_all(2)


def test_a_checkpoint_that_was_put_back_is_found_out_where_its_source_is_files(query: Query) -> None:
    """The offsets of such a source only count: with other files they are the same."""
    query.run()
    shutil.copytree(query.folder / "checkpoint", query.folder / "backup")
    query.file(2)
    query.run()
    shutil.rmtree(query.folder / "checkpoint")
    (query.folder / "backup").rename(query.folder / "checkpoint")
    (query.folder / "source" / "2.txt").unlink()
    query.file(3)
    with pytest.raises(StreamingQueryException, match=r"batch 2 of .* was decided with other offsets"):
        query.run()
    assert not (query.folder / "checkpoint" / "commits" / "2").exists()
    assert query.is_all(3)


def test_a_batch_that_a_person_knows_of_is_passed_over(query: Query) -> None:
    query.run()
    query.file(2)
    with Ledger.open(query.ledger_url) as ledger:
        ledger.set_stream(NAMESPACE, query.name, decided=2)
    query.run()
    assert query.is_all(2)
    assert (query.folder / "checkpoint" / "commits" / "2").exists()


def test_foreach_batch(query: Query) -> None:
    seen = []
    write = exactly_once(queryName=query.name, **query.options)

    def each(batch_df: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        write(batch_df, batch_id)

    query.run(each=each)
    assert query.is_all(2)
    query.forget(1)
    query.file(2)
    query.run(each=each)
    assert seen == [0, 1, 1, 2]
    assert query.is_all(3)


def test_a_run_of_airflows_on_spark_3_5_is_foreach_batch(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the packaged application starts where Spark has no Python data sources."""
    monkeypatch.setattr(versions, "is_at_least", lambda needed: needed < versions.PYTHON_SOURCES)
    made: list[exactly_once] = []

    def begun(**given: str) -> exactly_once:
        made.append(exactly_once(**given))
        return made[-1]

    monkeypatch.setattr(foreach, "exactly_once", begun)
    options = query.options | {"queryName": query.name, OPENED_BY: "dag/run#group=load"}
    files = {"folder": str(query.folder / "source")}

    def run() -> None:
        rows = query.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(files["folder"])
        started = application.start(rows, StreamSpec("jobs/any.py", options), query.spark)
        try:
            started.awaitTermination()
        finally:
            started.stop()

    run()
    assert query.is_all(2)
    query.forget(1)
    query.file(2)
    run()
    assert query.is_all(3)
    assert len(made) == 2
    with Ledger.open(query.ledger_url) as ledger:
        row = ledger.stream(NAMESPACE, query.name)
        assert row is not None and row.decided == 2
        load = LoadIdentity(NAMESPACE, query.name, f"{row.query_id}-2")
        assert [one.responsible for one in ledger.attempts(load)] == ["dag/run#group=load"]


def test_foreach_batch_takes_one_frame_under_a_name(query: Query) -> None:
    writers = [exactly_once(queryName=query.name, **query.options) for _ in range(2)]

    def each(batch_df: DataFrame, batch_id: int) -> None:
        for number, write in enumerate(writers):
            query.spark.sparkContext.setJobGroup(f"frame {number}", "as an author may, for Spark's UI")
            write(batch_df, batch_id)

    with pytest.raises(StreamingQueryException, match=r"a frame of batch 0 of query .* was handed over before"):
        query.run(each=each)
    assert not (query.folder / "checkpoint" / "commits" / "0").exists()
    writers.pop()
    query.run(each=each)
    assert query.is_all(2)


def test_foreach_batch_with_a_name_for_each_frame(query: Query) -> None:
    others = [exactly_once(queryName=f"{query.name} {n}", **query.options) for n in range(2)]

    def each(batch_df: DataFrame, batch_id: int) -> None:
        batch_df.persist()
        for n, write in enumerate(others):
            write(batch_df.where(f"substring(value, 4, 1) % 2 = {n}"), batch_id)

    query.run(each=each)
    query.forget(1)
    query.run(each=each)
    assert query.is_all(2)


def _in_threads(made: Callable[..., threading.Thread], calls: Sequence[Callable[[], None]], *, together: bool) -> None:
    """:raises Exception: the first error of any of them."""
    errors: list[BaseException] = []

    def caught(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as e:
            errors.append(e)

    threads = [made(target=partial(caught, call)) for call in calls]
    for thread in threads:
        thread.start()
        if not together:
            thread.join()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_foreach_batch_takes_one_frame_under_a_name_from_threads_too(query: Query) -> None:
    write = exactly_once(queryName=query.name, **query.options)

    def each(batch_df: DataFrame, batch_id: int) -> None:
        _in_threads(InheritableThread, [partial(write, batch_df, batch_id)] * 2, together=False)

    with pytest.raises(StreamingQueryException, match=r"a frame of batch 0 of query .* was handed over before"):
        query.run(each=each)
    assert not (query.folder / "checkpoint" / "commits" / "0").exists()
    query.run(each=write)
    assert query.is_all(2)


def test_foreach_batch_with_a_thread_for_each_frame(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame that comes second binds its name first; then a batch comes again, in another run."""
    first, second = (exactly_once(queryName=f"{query.name} {n}", **query.options) for n in range(2))
    noted, bound = threading.Event(), threading.Event()
    begin, seen = driver.begin, []

    def begin_in_that_order(options: StreamOptions, *given: Any, **more: Any) -> Any:
        if options.name == f"{query.name} 0":
            noted.set()
            assert bound.wait(120)
            return begin(options, *given, **more)
        try:
            return begin(options, *given, **more)
        finally:
            bound.set()

    def behind_the_first(frame: DataFrame, batch_id: int) -> None:
        assert noted.wait(120)
        second(frame, batch_id)

    def each(batch_df: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        batch_df.persist()
        halves = [batch_df.where(f"substring(value, 4, 1) % 2 = {n}") for n in range(2)]
        calls = [partial(first, halves[0], batch_id), partial(behind_the_first, halves[1], batch_id)]
        _in_threads(InheritableThread, calls, together=True)

    monkeypatch.setattr(driver, "begin", begin_in_that_order)
    query.run(each=each)
    query.forget(1)
    query.run(each=each)
    assert seen == [0, 1, 1]
    assert query.is_all(2)


def test_foreach_batch_in_a_thread_of_no_query_writes_nothing(query: Query) -> None:
    write = exactly_once(queryName=query.name, **query.options)

    def each(batch_df: DataFrame, batch_id: int) -> None:
        _in_threads(threading.Thread, [partial(write, batch_df, batch_id)], together=True)

    with pytest.raises(StreamingQueryException, match="in a thread that does not belong to a query at work") as refused:
        query.run(each=each)
    assert "pyspark.InheritableThread" in str(refused.value)
    assert query.values() == []
    query.run(each=write)
    assert query.is_all(2)


def test_foreach_batch_that_leaves_out_a_batch_is_told(query: Query) -> None:
    write = exactly_once(queryName=query.name, **query.options)

    def each(batch_df: DataFrame, batch_id: int) -> None:
        if batch_id:
            write(batch_df, batch_id)

    with pytest.raises(StreamingQueryException, match=r"batch 1 of query .* is not the next one") as refused:
        query.run(each=each)
    assert "does the function of foreachBatch leave out a batch" in str(refused.value)
    assert query.values() == []


def test_foreach_batch_that_went_on_behind_an_error_is_taken_back_by_its_checkpoint(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way out that the error and docs/streams.md name: no row is lost, and none is there twice."""
    query.file(2)
    write = exactly_once(queryName=query.name, **query.options)
    swallowed: list[int] = []

    def fails_once(*given: Any, **more: Any) -> None:
        monkeypatch.undo()
        raise OSError("before the decision")

    def each(batch_df: DataFrame, batch_id: int) -> None:
        if batch_id == 1 and not swallowed:
            monkeypatch.setattr(batches, "record_prepared", fails_once)
        try:
            write(batch_df, batch_id)
        except OSError:
            swallowed.append(batch_id)

    with pytest.raises(StreamingQueryException, match=r"batch 2 of query .* is not the next one") as refused:
        query.run(each=each)
    assert swallowed == [1]
    assert "move commits/1 and offsets/2 out of it" in str(refused.value)
    assert len(query.values()) == ROWS
    checkpoint = query.folder / "checkpoint"
    for removed in ("commits/1", "commits/.1.crc", "offsets/2", "offsets/.2.crc"):
        (checkpoint / removed).unlink()
    query.run(each=each)
    assert query.is_all(3)


def test_foreach_batch_whose_commit_fails_ends_what_it_has_written(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = exactly_once(queryName=query.name, **query.options)

    def fails(*given: Any, **more: Any) -> None:
        assert [entry for entry in given[1].entries if entry.transaction is not None]
        raise OSError("before the decision")

    with monkeypatch.context() as patch, pytest.raises(StreamingQueryException, match="before the decision"):
        patch.setattr(batches, "record_prepared", fails)
        query.run(each=write)
    query.nothing_open()
    query.run(each=write)
    assert query.is_all(2)


@pytest.mark.parametrize("sink", ["writeStream", "foreachBatch"])
def test_what_a_task_is_refused_says_what_to_do_with_a_query(query: Query, sink: str) -> None:
    """Nobody can clear a task of it, and `hold_time` is no option that it has."""
    from pyspark.sql.functions import udf

    @udf("string")
    def slow(value: str) -> str:
        time.sleep(4 if value in ("v000", "v020") else 0)
        return value

    short = {"transaction.timeout.ms": "2000", "batch.timeout.ms": "2000"}
    write = exactly_once(queryName=query.name, **query.options | short)
    with pytest.raises(StreamingQueryException, match="the deadline for opening transactions passed") as refused:
        if sink == "writeStream":
            query.run(lambda rows: rows.select(slow("value").alias("value")), options=short)
        else:
            query.run(each=lambda rows, batch: write(rows.select(slow("value").alias("value")), batch))
    assert "Start the query again: it opens a new attempt" in str(refused.value)
    assert "Clear prepare" not in str(refused.value)


def test_foreach_batch_with_the_name_of_a_query_at_work_leaves_that_alone(query: Query, tmp_path: Path) -> None:
    query.run()
    copied = exactly_once(queryName=query.name, **query.options)
    other = replace(query, folder=tmp_path / "other")
    other.folder.mkdir()
    other.file(2)
    with pytest.raises(StreamingQueryException, match="and Spark runs batch 0 of query"):
        other.run(each=copied)
    with Ledger.open(query.ledger_url) as ledger:
        row = ledger.stream(NAMESPACE, query.name)
    assert row is not None and row.newest_run == 1
    query.file(2)
    query.run()
    assert query.is_all(3)


def test_foreach_batch_with_another_querys_checkpoint_writes_nothing(query: Query, tmp_path: Path) -> None:
    query.run()
    others: dict[str, Any] = query.options
    write = exactly_once(queryName=f"{query.name} 2", **others)
    query.folder = tmp_path / "other"
    query.folder.mkdir()
    query.file(2)
    with pytest.raises(StreamingQueryException, match="and Spark runs batch"):
        query.run(each=write)
    assert len(query.values()) == 2 * ROWS
