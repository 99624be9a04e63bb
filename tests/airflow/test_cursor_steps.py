"""Loads with a cursor by their operators: sources, jobs that choose, named ranges, Spark and the worker."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG
from sqlalchemy import create_engine, text

from airflow_kafka_eos.cursor import CONF_KEY, Cursor
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sources import KafkaOffsets, Watermark
from tests.airflow import steps
from tests.airflow.steps import LOAD, connection, operator, refused, run, session
from tests.kafka.test_offset_ranges import produce
from tests.postgresql import PostgreSQL
from tests.reading import committed_values

CHOOSES = """
import pyarrow as pa

def load(since, until=None):
    ends = until
    if ends is None:
        with open("{end}") as file:
            ends = int(file.read())
    rows = pa.table({{"value": [f"v{{n}}" for n in range(since or 0, ends)]}})
    return (rows, ends) if until is None else rows
"""
COPIES = """
from airflow_kafka_eos import KafkaOffsets

def load(since, until):
    return KafkaOffsets(["{source}"]).read(since, until)
"""
OF_SPARK = """
def load(spark, since, until):
    return spark.range(since, until).selectExpr("concat('v', id) AS value")
"""


@pytest.fixture(autouse=True)
def own_name(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A cursor is of a load name: each test has one."""
    name = f"{LOAD} {request.node.name}"
    monkeypatch.setattr(steps, "LOAD", name)
    return name


@pytest.fixture
def shop(home: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    connection(monkeypatch, "shop", "sqlite", host=str(home / "shop.db"))
    made = sqlite3.connect(home / "shop.db")
    made.execute("CREATE TABLE orders (id INTEGER)")
    return made


def fill(shop: sqlite3.Connection, last: int) -> None:
    shop.execute("DELETE FROM orders")
    shop.executemany("INSERT INTO orders VALUES (?)", [(n,) for n in range(1, last + 1)])
    shop.commit()


def through(key: str, **arguments: Any) -> Any:
    """A whole load."""
    run("begin", key)
    done = run("prepare", key, **arguments)
    for step in ("decide", "commit", "cleanup"):
        run(step, key)
    return done


@contextmanager
def conf(**found: Any) -> Iterator[None]:
    """The run's conf."""
    before = steps.CONTEXT["dag_run"]
    steps.CONTEXT["dag_run"] = SimpleNamespace(**vars(before), conf=found)
    try:
        yield
    finally:
        steps.CONTEXT["dag_run"] = before


def at(name: str) -> Any:
    with session() as opened:
        found = opened.ledger.cursor("airflow", name)
        return None if found is None else found.position


def ranges(name: str, key: str) -> list[tuple[Any, Any]]:
    with session() as opened:
        return [(r.since, r.until) for r in opened.ledger.ranges(LoadIdentity("airflow", name, key))]


def test_topics_are_copied_by_offsets_of_the_ledger(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], own_name: str
) -> None:
    source, target = topic(2), topic(1)
    (home / "copy.py").write_text(COPIES.format(source=source))
    given = {
        "topics": [target], "job": str(home / "copy.py"), "engine": "arrow",
        "cursor": Cursor(source=KafkaOffsets([source])),
    }  # fmt: skip
    produce(kafka, source, "a", "b")
    assert through("first", **given)["records"] == 2
    produce(kafka, source, "c", partition=1)
    assert through("second", **given)["records"] == 1
    assert committed_values(kafka.bootstrap_servers, target, 1) == ["a", "b", "c"]
    assert at(own_name)["offsets"] == {source: {"0": 2, "1": 1}}


def test_spark_and_sql_read_up_to_a_watermark(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], shop: sqlite3.Connection, own_name: str
) -> None:
    target = topic(1)
    (home / "of_spark.py").write_text(OF_SPARK)
    cursor = Cursor(source=Watermark("shop", "SELECT max(id) FROM orders"), first_since=0)
    fill(shop, 3)
    through("first", topics=[target], job=str(home / "of_spark.py"), cursor=cursor)
    fill(shop, 5)
    query = "SELECT concat('v', id) AS value FROM range(100) WHERE id >= :since AND id < :until"
    through("second", topics=[target], sql=query, cursor=cursor)
    assert committed_values(kafka.bootstrap_servers, target, 1) == [f"v{n}" for n in range(5)]
    assert (at(own_name), ranges(own_name, "second")) == (5, [(3, 5)])


def test_what_a_job_has_chosen_is_read_by_its_retry(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], own_name: str
) -> None:
    target, job, end = topic(1), home / "chooses.py", home / "end"
    given = {"topics": [target], "job": str(job), "engine": "arrow", "cursor": Cursor(first_since=0)}
    end.write_text("3")
    run("begin", "k")
    job.write_text(CHOOSES.format(end=end).replace("(rows, ends)", "(broken(rows), ends)") + BROKEN)
    with pytest.raises(AirflowException) as caught:
        run("prepare", "k", **given)
    assert not isinstance(caught.value, AirflowFailException), "it is tried again"
    end.write_text("7")
    job.write_text(CHOOSES.format(end=end))
    assert run("prepare", "k", **given)["records"] == 3, "the end of the first attempt, not what is there by now"
    assert ranges(own_name, "k") == [(0, None), (0, 3)]
    for step in ("decide", "commit", "cleanup"):
        run(step, "k")
    assert through("next", **given)["records"] == 4
    assert committed_values(kafka.bootstrap_servers, target, 1) == [f"v{n}" for n in range(7)]


BROKEN = """

def broken(rows):
    def batches():
        yield from rows.to_batches()
        raise OSError("no disk")
    return pa.RecordBatchReader.from_batches(rows.schema, batches())
"""


def test_a_job_that_does_not_keep_to_its_range_is_refused(
    home: Path, topic: Callable[..., str], own_name: str
) -> None:
    job = home / "wrong.py"
    given = {"topics": [topic(1)], "job": str(job), "engine": "arrow", "cursor": Cursor(first_since=5)}
    run("begin", "k")
    table = "__import__('pyarrow').table({'value': ['v']})"
    for body, said in (
        (f"return {table}", "does not return where its range ends"),
        (f"return {table}, '9'", "without an order"),
        (f"return {table}, 4", "before 5"),
        (f"return {table}, 5", "reads more than its range"),
    ):
        job.write_text(f"def load(since, until=None):\n    {body}\n")
        if "more" in said:
            run("prepare", "k", **given)
            assert said in refused("decide", "k")
        else:
            assert said in refused("prepare", "k", **given)
    assert at(own_name) == 5


def test_a_source_that_has_gone_back_is_said(
    home: Path, topic: Callable[..., str], shop: sqlite3.Connection, own_name: str
) -> None:
    (home / "of_worker.py").write_text(
        "import pyarrow as pa\n"
        "def load(since, until):\n    return pa.table({'value': [str(n) for n in range(since, until)]})\n"
    )
    given = {
        "topics": [topic(1)], "job": str(home / "of_worker.py"), "engine": "arrow",
        "cursor": Cursor(source=Watermark("shop", "SELECT max(id) FROM orders"), first_since=0),
    }  # fmt: skip
    fill(shop, 5)
    through("first", **given)
    fill(shop, 2)
    run("begin", "second")
    assert "ends at 2, before 5" in refused("prepare", "second", **given)
    for query, said in (("SELECT 1, 2", "answers 2 values"), ("SELECT 'x'", "without an order"), ("SELEC", "SELEC")):
        given["cursor"] = Cursor(source=Watermark("shop", query), first_since=0)
        assert said in refused("prepare", "second", **given)
    fill(shop, 6)
    given["cursor"] = Cursor(source=Watermark("shop", "SELECT max(id) FROM orders"), first_since=0)
    assert run("prepare", "second", **given)["records"] == 1


def test_a_key_that_is_taken_does_not_pass_for_another_named_range(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], own_name: str
) -> None:
    target, job = topic(1), home / "chooses.py"
    (home / "end").write_text("3")
    job.write_text(CHOOSES.format(end=home / "end"))
    given = {"topics": [target], "job": str(job), "engine": "arrow", "cursor": Cursor(first_since=0)}
    through("k", **given)
    with conf(**{CONF_KEY: {"since": 1, "until": 3}}):
        assert "this run names the range from 1 to 3" in refused("prepare", "k", **given)
        assert through("backfill", **given)["records"] == 2
    with conf(**{CONF_KEY: {"since": 0, "until": 3}}):
        assert run("prepare", "k", **given)["verdict"] == "commit"
    assert at(own_name) == 3
    named = Cursor(first_since=0, since="0", until="{{ params.x }}")
    task = operator("prepare", "other", **given | {"cursor": named})
    task.until = "1"
    run("begin", "other")
    assert task.execute(steps.CONTEXT)["records"] == 1
    assert (at(own_name), ranges(own_name, "other")) == (3, [(0, 1)])


@pytest.mark.parametrize(
    "found", [{"since": 1}, {"since": 1, "until": 1}, {"since": 2, "until": 1}, {"since": "None", "until": 1}, [], "x",
              {"since": "{{ x }}", "until": 3}, {"since": 1, "until": ""}]
)  # fmt: skip
def test_a_range_that_is_half_there_is_refused_before_anything_is_opened(
    home: Path, topic: Callable[..., str], own_name: str, found: Any
) -> None:
    given = {"topics": [topic(1)], "job": "x.py", "engine": "arrow", "cursor": Cursor(first_since=0)}
    (home / "x.py").write_text("def load(since, until=None): ...")
    given["job"] = str(home / "x.py")
    run("begin", "k")
    with conf(**{CONF_KEY: found}):
        assert "ConfigurationError" in refused("prepare", "k", **given)
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", own_name, "k"))
    assert not row.is_submitted


def test_one_conf_is_of_one_run_and_of_one_load(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], own_name: str
) -> None:
    """A backfill gives each of its runs the same conf, and each run has a key of its own."""
    target, job = topic(1), home / "chooses.py"
    job.write_text(CHOOSES.format(end=home / "end"))
    given: dict[str, Any] = {
        "topics": [target], "job": str(job), "engine": "arrow", "cursor": Cursor(first_since=0),
    }  # fmt: skip
    with conf(**{CONF_KEY: {"since": 10, "until": 12}}):
        assert through("day 1", **given)["records"] == 2
        run("begin", "day 2")
        assert "would read a part of it once more" in refused("prepare", "day 2", **given)
        with DAG("two", schedule=None, start_date=datetime(2026, 1, 1)):
            first = operator("prepare", "day 3", **given)
            PrepareLoadOperator(task_id="other", load_name="other", load_key="k", **given)
        with pytest.raises(AirflowFailException, match="several loads with a cursor"):
            first.execute(steps.CONTEXT)
    assert committed_values(kafka.bootstrap_servers, target, 1) == ["v10", "v11"]
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", own_name, "day 2"))
    assert not row.is_submitted, "nothing is opened for it"


def test_a_range_of_the_conf_counts_where_the_dag_names_one_too(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], own_name: str
) -> None:
    target, job = topic(1), home / "chooses.py"
    job.write_text(CHOOSES.format(end=home / "end"))
    given: dict[str, Any] = {
        "topics": [target], "job": str(job), "engine": "arrow", "cursor": Cursor(since="1", until="3"),
    }  # fmt: skip
    with conf(**{CONF_KEY: {"since": 10, "until": 12}}):
        through("by hand", **given)
    through("as scheduled", **given)
    assert (ranges(own_name, "by hand"), ranges(own_name, "as scheduled")) == ([(10, 12)], [(1, 3)])


def test_a_mapped_task_takes_no_range(
    home: Path, topic: Callable[..., str], own_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All map indexes have one load name: each range would go to one of them."""
    (home / "x.py").write_text("def load(since, until=None): ...")
    given = {"topics": [topic(1)], "job": str(home / "x.py"), "engine": "arrow", "cursor": Cursor(first_since=0)}
    run("begin", "k")
    monkeypatch.setitem(steps.CONTEXT, "ti", SimpleNamespace(**{**vars(steps.CONTEXT["ti"]), "map_index": 0}))
    assert "is mapped, and has a cursor" in refused("prepare", "k", **given)


class Stepping:
    """Ends where the test says, and may have lost what it had."""

    def __init__(self) -> None:
        self.end, self.is_gone = 3, False

    def bounds(self, since: Any) -> tuple[Any, Any]:
        return since, self.end

    def check(self, since: Any, until: Any) -> None:
        if self.is_gone:
            raise ConfigurationError("records were deleted before they were read", remedy="look")


def test_a_range_that_is_gone_meanwhile_is_not_read_by_a_retry(
    home: Path, topic: Callable[..., str], own_name: str
) -> None:
    source = Stepping()
    (home / "of_worker.py").write_text(OF_WORKER)
    given: dict[str, Any] = {"topics": [topic(1)], "job": str(home / "of_worker.py"), "engine": "arrow"}
    given["cursor"] = Cursor(source=source, first_since=0)
    run("begin", "k")
    run("prepare", "k", **given)
    source.is_gone = True
    assert "deleted before they were read" in refused("prepare", "k", **given)
    source.is_gone = False
    assert run("prepare", "k", **given)["records"] == 3


def test_what_a_source_cannot_read_is_no_attempts_range(home: Path, topic: Callable[..., str], own_name: str) -> None:
    """A source of an author's may look in ``check`` alone; pinned, the range would be every retry's."""
    source = Stepping()
    source.is_gone = True
    (home / "of_worker.py").write_text(OF_WORKER)
    given: dict[str, Any] = {"topics": [topic(1)], "job": str(home / "of_worker.py"), "engine": "arrow"}
    given["cursor"] = Cursor(source=source, first_since=0)
    run("begin", "k")
    assert "deleted before they were read" in refused("prepare", "k", **given)
    assert [until for _, until in ranges(own_name, "k")] == [None]
    source.is_gone, source.end = False, 5
    assert run("prepare", "k", **given)["records"] == 5


def test_an_early_run_reads_what_has_come_once_it_is_cleared(
    home: Path, topic: Callable[..., str], own_name: str
) -> None:
    source = Stepping()
    source.end = 0
    (home / "of_worker.py").write_text(OF_WORKER)
    given: dict[str, Any] = {"topics": [topic(1)], "job": str(home / "of_worker.py"), "engine": "arrow"}
    given["cursor"] = Cursor(source=source, first_since=0)
    run("begin", "k")
    run("prepare", "k", **given)
    assert "0 records" in refused("decide", "k")
    run("cleanup", "k")
    source.end = 4
    run("begin", "k")
    assert run("prepare", "k", **given)["records"] == 4


def test_a_query_never_begins_with_null(home: Path, topic: Callable[..., str], own_name: str) -> None:
    cursor = Cursor(source=Stepping(), first_since=0)
    given = {"topics": [topic(1)], "sql": "SELECT 'v' AS value WHERE 1 >= :since AND 1 < :until", "cursor": cursor}
    with session() as opened:
        opened.ledger.set_cursor("airflow", own_name, expected=None, moves=None, to=None, by="ann", reason="looked")
    run("begin", "k")
    assert "a comparison with NULL finds nothing" in refused("prepare", "k", **given)


OF_WORKER = """
import pyarrow as pa

def load(since, until):
    return pa.table({"value": pa.array([f"v{n}" for n in range(since, until)], pa.string())})
"""
OF_CHANGES = """
import sqlite3
import pyarrow as pa

def load(since, until):
    with sqlite3.connect("{shop}") as shop:
        rows = shop.execute("SELECT id FROM changes WHERE at >= ? AND at < ?", (since, until)).fetchall()
    return pa.table({{"value": [f"v{{n}}" for n, in rows]}})
"""


def test_rows_of_the_second_that_a_range_ends_with_are_in_the_next_one(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], shop: sqlite3.Connection, own_name: str
) -> None:
    """Times of whole seconds: the largest one may get more rows once it was asked for."""
    target = topic(1)
    (home / "changes.py").write_text(OF_CHANGES.format(shop=home / "shop.db"))
    source = Watermark("shop", "SELECT max(at) FROM changes")
    given: dict[str, Any] = {"topics": [target], "job": str(home / "changes.py"), "engine": "arrow"}
    given["cursor"] = Cursor(source=source, first_since="1970-01-01 00:00:00")
    shop.execute("CREATE TABLE changes (id INTEGER, at TEXT)")

    def change(number: int, at: str) -> None:
        shop.execute("INSERT INTO changes VALUES (?, ?)", (number, at))
        shop.commit()

    change(1, "2026-01-01 10:00:00")
    change(2, "2026-01-01 10:00:01")
    assert through("first", **given)["records"] == 1
    change(3, "2026-01-01 10:00:01")
    change(4, "2026-01-01 10:00:02")
    assert through("second", **given)["records"] == 2
    assert committed_values(kafka.bootstrap_servers, target, 1) == ["v1", "v2", "v3"]


OF_LAST_CHANGES = """
import pyarrow as pa
import sqlalchemy as sa

def load(since, until):
    changed = f"(SELECT * FROM orders WHERE updated_at >= '{{since}}' AND updated_at < '{{until}}') AS changed"
    with sa.create_engine("{url}").connect() as connection:
        rows = connection.execute(sa.text(f"SELECT id, said FROM {{changed}} ORDER BY id")).all()
    return pa.table({{"value": pa.array([f"{{n}} {{said}}" for n, said in rows], pa.string())}})
"""


def test_a_row_is_in_the_range_of_its_last_change_by_the_database_s_clock(
    home: Path,
    kafka: LocalKafka,
    topic: Callable[..., str],
    postgresql: PostgreSQL,
    own_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """docs/cursors.md, By the time of a change; max(updated_at) would go back with an update of the newest row."""
    target, database = topic(1), "shop_of_changes"
    postgresql.run(f"CREATE DATABASE {database}")
    url = postgresql.url(database).replace("postgresql:", "postgresql+psycopg2:")
    connection(
        monkeypatch, "changes", "postgres", host=postgresql.directory, port=postgresql.port, login="postgres",
        schema=database,
    )  # fmt: skip
    engine = create_engine(url, isolation_level="AUTOCOMMIT")

    def change(number: int, said: str, minutes_ago: int) -> None:
        at = f"now() - interval '{minutes_ago} minutes'"
        with engine.connect() as there:
            there.execute(
                text(
                    f"INSERT INTO orders VALUES ({number}, '{said}', {at}) "
                    f"ON CONFLICT (id) DO UPDATE SET said = '{said}', updated_at = {at}"
                )
            )

    with engine.connect() as there:
        there.execute(text("CREATE TABLE orders (id integer PRIMARY KEY, said text, updated_at timestamptz)"))
    job = home / "last_changes.py"
    job.write_text(OF_LAST_CHANGES.format(url=url))

    def load(key: str, minutes_ago: int) -> list[str]:
        source = Watermark("changes", f"SELECT now() - interval '{minutes_ago} minutes'")
        cursor = Cursor(source=source, first_since="1970-01-01T00:00:00+00:00")
        run("begin", key)
        run("prepare", key, topics=[target], job=str(job), engine="arrow", cursor=cursor)
        run("decide", key, min_records=0)
        for step in ("commit", "cleanup"):
            run(step, key)
        return committed_values(kafka.bootstrap_servers, target, 1)

    change(1, "new", 90)
    change(2, "new", 80)
    assert load("first", 60) == ["1 new", "2 new"]
    change(2, "changed", 50)  # the newest row: by max() the next range would end before it begins
    assert load("nothing", 55) == ["1 new", "2 new"], "an hour without a change is loaded, too"
    # a try that fails has chosen its range, and the row is changed before the retry
    (home / "whole.py").write_text(job.read_text())
    job.write_text("def load(since, until):\n    raise RuntimeError('not now')\n")
    with pytest.raises(RuntimeError, match="not now"):
        load("second", 40)
    change(2, "changed again", 30)
    change(3, "new", 45)
    job.write_text((home / "whole.py").read_text())
    assert load("second", 0) == ["1 new", "2 new", "3 new"], "its range is that of the first try"
    assert load("third", 20) == ["1 new", "2 changed again", "2 new", "3 new"]
    engine.dispose()
