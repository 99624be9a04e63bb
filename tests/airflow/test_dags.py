"""Each example DAG in dags/ runs as it stands, on a real scheduler, triggerer, Spark, broker and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import HOST
from airflow_kafka_eos.sandbox.spark import quick_settings
from tests.airflow.conftest import PARSED_ONCE
from tests.airflow.examples import PATIENCE, Examples
from tests.airflow.rest import past_midnight
from tests.airflow.stored import stored
from tests.connect.server import Server
from tests.kafka.open_transactions import wait_until
from tests.postgresql import PostgreSQL

ROOT = Path(__file__).parents[2]
TOPICS = ("orders", "clicks", "invoices", "payments", "approved_orders", "events", "left_behind", "readings",
          "measurements", "large_orders", "parcels", "temperatures")  # fmt: skip
pytestmark = pytest.mark.timeout(1800)

READERS = {"plain_reader", "partitioned_reader_of_plain", "plain_reader_of_partitions", "hourly_partitioned_reader"}
DAGS = READERS | {
    *("approve_outsized", "by_spark_connect", "deadline_alert", "dual_write_postgresql", "hourly_partitioned_load"),
    *("hourly_stream", "incremental", "kafka_eos_maintenance", "load_in_doubt", "mapped_topics", "own_operator"),
    "without_spark",
}
HOUR = "2026-01-01T10"
STUCK = LoadIdentity("airflow", "deadline_alert.load_events", "stuck")


def runs(*dags: str) -> Callable[[Any], Any]:
    """What a test waits for: with ``-k`` nothing else is started."""

    def mark(test: Any) -> Any:
        test.dags = dags
        return test

    return mark


@pytest.fixture(scope="module")
def warehouse(postgresql: PostgreSQL) -> str:
    postgresql.run("CREATE DATABASE warehouse TEMPLATE template_ledger")
    return postgresql.url("warehouse").replace("postgresql:", "postgresql+psycopg2:")


@pytest.fixture(scope="module")
def examples(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    postgresql: PostgreSQL,
    warehouse: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Examples]:
    """All of them at once: each run takes some twenty tasks, most of which wait for one another."""
    wanted = {dag for item in request.session.items for dag in getattr(getattr(item, "function", None), "dags", ())}
    served = Server(tmp_path_factory.mktemp("connect"))
    if "by_spark_connect" in wanted:
        request.addfinalizer(served.kill)
        served.start()
    past_midnight(900)  # by then all that is daily has had its only run
    home, dags = tmp_path_factory.mktemp("examples"), tmp_path_factory.mktemp("dags")
    for path in (*(ROOT / "dags").glob("*.py"), *(ROOT / "tests" / "airflow" / "readers").glob("*.py")):
        (dags / path.name).symlink_to(path)
    for topic in TOPICS:
        kafka.create_topic(topic, partitions=2)
    connections: dict[str, dict[str, Any]] = {
        "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}},
        "spark_default": {
            "conn_type": "spark",
            "host": "local[2]",
            "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
        },
        "spark_connect": {"conn_type": "spark_connect", "host": HOST, "port": served.port},
        "warehouse": {
            "conn_type": "postgres",
            "host": postgresql.directory,
            "port": postgresql.port,
            "login": "postgres",
            "schema": "warehouse",
        },
    }
    settings = quick_settings(home / "spark") | postgresql.for_airflow("airflow_of_examples") | PARSED_ONCE | {
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "LOAD_DEADLINE_S": "1",
        "STREAM_FOLDER": str(home / "stream"),
        "PYTHONPATH": str(ROOT),
    }
    Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db", upgrade=True).close()
    post_parcels(home, 0, 1)
    with LocalAirflow(home, dags, connections=connections, settings=settings) as airflow:
        running = Examples(airflow, kafka.bootstrap_servers)
        wait_until(lambda: {d["dag_id"] for d in airflow.get("/dags")["dags"]} >= DAGS, "all DAGs", 120)
        assert airflow.get("/importErrors")["import_errors"] == []
        # a load that no run is left to decide, for the deadline's report, and to be left alone by maintenance
        with running.session() as session:
            running.world(session, "left_behind", STUCK.name, STUCK.key).prepare(["stuck"])
        wanted = {dag for item in request.session.items for dag in getattr(getattr(item, "function", None), "dags", ())}
        for dag in sorted((wanted | READERS) - {"incremental"}):
            running.unpause(dag)
        if "hourly_partitioned_load" in wanted:
            running.trigger("hourly_partitioned_load", "one_hour", partition_key=HOUR)
        for run_id, count in (("approved", 100), ("rejected", 100), ("usual", 10)):
            if "approve_outsized" in wanted:
                running.trigger("approve_outsized", run_id, conf={"count": count})
        yield running


@runs("dual_write_postgresql")
def test_rows_and_records_become_true_together(examples: Examples, warehouse: str) -> None:
    run = examples.ended("dual_write_postgresql")
    assert run["state"] == "success", examples.states("dual_write_postgresql", run["dag_run_id"])
    day = run["logical_date"][:10]
    engine = create_engine(warehouse)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT day, records FROM loaded_days")).all()
    engine.dispose()
    assert [(str(day), records) for day, records in rows] == [(day, 100)]
    orders = [value for value in examples.visible("orders") if not value.startswith("large")]
    assert orders == sorted(f"order {n} of {day}" for n in range(100))


@runs("dual_write_postgresql")
def test_a_visible_load_wakes_plain_readers_once_also_when_all_of_it_is_cleared(examples: Examples) -> None:
    run = examples.ended("dual_write_postgresql")["dag_run_id"]
    woken = examples.ended("plain_reader")["dag_run_id"]
    (extra,) = examples.returned("plain_reader", woken, "what_is_new")
    assert (extra["load"][:44], extra["attempt"]) == ("airflow/dual_write_postgresql.load_orders/20", 1)
    assert extra["records"] == 100 and extra["decided_at"]
    assert extra["offsets"] == examples.spans("orders", "order")
    examples.clear("dual_write_postgresql", run, "load_orders.begin", "load_orders.loaded")
    wait_until(lambda: examples.runs("dual_write_postgresql")[run]["state"] != "success", "the clear")
    assert examples.ended("dual_write_postgresql", run)["state"] == "success"
    (event,) = examples.asset_events("dual_write_postgresql")
    assert (event["uri"], event["partition_key"]) == (f"kafka://{examples.bootstrap}/orders", None)
    assert (len(examples.runs("plain_reader")), examples.runs("partitioned_reader_of_plain")) == (1, {})


@runs("hourly_partitioned_load")
def test_an_hour_wakes_its_partitioned_reader_once_and_no_plain_one(examples: Examples) -> None:
    assert examples.ended("hourly_partitioned_load", "one_hour")["state"] == "success"
    of_hour = [value for value in examples.visible("clicks") if HOUR in value]  # the schedule has one of its own, too
    assert of_hour == sorted(f"click {n} of {HOUR}" for n in range(60))

    def woken() -> list[dict[str, Any]]:
        return [r for r in examples.runs("hourly_partitioned_reader").values() if r["partition_key"] == HOUR]

    wait_until(lambda: any(r["state"] == "success" for r in woken()), "the reader of that hour", PATIENCE)
    (reader,) = woken()
    new = examples.returned("hourly_partitioned_reader", reader["dag_run_id"], "what_is_new")
    assert new == {"hour": HOUR, "records": 60, "offsets": examples.spans("clicks", HOUR)}
    assert examples.runs("plain_reader_of_partitions") == {}
    with examples.ledger() as ledger:
        row = ledger.load(LoadIdentity("airflow", "hourly_partitioned_load.load_clicks", HOUR))
    assert row is not None and row.state is LoadState.COMMITTED


@runs("mapped_topics")
def test_mapped_loads_go_into_their_own_topics(examples: Examples) -> None:
    run = examples.ended("mapped_topics")
    assert run["state"] == "success", examples.states("mapped_topics", run["dag_run_id"])
    day = run["logical_date"][:10]
    for topic in ("invoices", "payments"):
        assert examples.visible(topic) == [f"{topic} of {day}"]
    uris = sorted(e["uri"] for e in examples.asset_events("mapped_topics"))
    assert uris == [f"kafka://{examples.bootstrap}/{t}" for t in ("invoices", "payments")]


@runs("without_spark")
def test_a_load_without_spark_arrives(examples: Examples) -> None:
    run = examples.ended("without_spark")
    assert run["state"] == "success", examples.states("without_spark", run["dag_run_id"])
    day = run["logical_date"][:10]
    assert examples.visible("readings") == [f"{day} {hour:02}:00 21.5" for hour in range(24)]


@runs("incremental")
def test_a_load_reads_on_where_the_last_one_ended(examples: Examples) -> None:
    """Also over what is committed by nobody's load of ours."""

    def write(*numbers: int) -> list[str]:
        values = [f"large {n} {'x' * 100}" for n in numbers]
        producer = Producer({"bootstrap.servers": examples.bootstrap})
        for value in values:
            producer.produce("orders", value.encode())
        assert producer.flush(30) == 0
        return values

    expected = write(1, 2, 3)
    examples.unpause("incremental")  # here, for there is something to read now
    run = examples.ended("incremental", examples.first("incremental"))  # each hour brings another one
    assert run["state"] == "success", examples.states("incremental", run["dag_run_id"])
    assert examples.visible("large_orders") == expected
    expected += write(4)
    examples.trigger("incremental", "again")
    assert examples.ended("incremental", "again")["state"] == "success", examples.states("incremental", "again")
    assert examples.visible("large_orders") == expected


def post_parcels(home: Path, *files: int) -> None:
    """Files of JSON lines that the streaming query reads."""
    folder = home / "stream" / "in"
    folder.mkdir(parents=True, exist_ok=True)
    for n in files:
        (home / f"{n}.json").write_text("".join(f'{{"id": "{n}-{line}", "state": "sent"}}\n' for line in range(10)))
        (home / f"{n}.json").rename(folder / f"{n}.json")


@runs("hourly_stream")
def test_a_query_takes_what_has_come_and_a_later_run_what_has_come_since(examples: Examples) -> None:
    def expected(files: int) -> list[str]:
        every = ((n, line) for n in range(files) for line in range(10))
        return sorted(f'{{"id":"{n}-{line}","state":"sent"}}' for n, line in every)

    first = examples.first("hourly_stream")
    assert examples.ended("hourly_stream", first)["state"] == "success", examples.states("hourly_stream", first)
    assert examples.visible("parcels") == expected(2)
    assert examples.returned("hourly_stream", first, "parcels.run")["batches"] == [0, 1]
    post_parcels(examples.airflow.home, 2)
    examples.trigger("hourly_stream", "by-hand")
    assert examples.ended("hourly_stream", "by-hand")["state"] == "success"
    assert examples.visible("parcels") == expected(3)
    events = examples.asset_events("hourly_stream")
    assert sorted(e["extra"]["batches"] for e in events) == [[0, 1], [2, 2]]


@runs("by_spark_connect")
def test_a_load_by_spark_connect_arrives(examples: Examples) -> None:
    run = examples.ended("by_spark_connect")
    assert run["state"] == "success", examples.states("by_spark_connect", run["dag_run_id"])
    assert len(examples.visible("temperatures")) == 24


@runs("own_operator")
def test_a_load_behind_an_operator_of_the_authors_arrives(examples: Examples) -> None:
    run = examples.ended("own_operator")
    states = examples.states("own_operator", run["dag_run_id"])
    assert run["state"] == "success", states
    assert {states["load.submit"], states["load.collect"]} == {"success"}
    day = run["logical_date"][:10]
    assert examples.visible("measurements") == sorted(f"{day} {n}" for n in range(1000))


@runs("approve_outsized")
def test_a_person_approves_or_rejects_what_is_prepared(examples: Examples) -> None:
    examples.answer("approve_outsized", "rejected", "load_orders.approve", "Reject")
    examples.answer("approve_outsized", "approved", "load_orders.approve", "Approve")
    # not before: readers of its topic, and so its loaded, wait behind the two that are open
    assert examples.ended("approve_outsized", "usual")["state"] == "success", "nobody was to be asked"
    assert examples.ended("approve_outsized", "approved")["state"] == "success"
    assert examples.ended("approve_outsized", "rejected")["state"] == "failed"
    seen = examples.states("approve_outsized", "rejected")
    assert (seen["load_orders.decide"], seen["load_orders.cleanup"]) == ("upstream_failed", "success")
    expected = [f"order {n} of approved" for n in range(100)] + [f"order {n} of usual" for n in range(10)]
    assert examples.visible("approved_orders") == sorted(expected)


@runs("deadline_alert")
def test_a_missed_deadline_reports_loads_that_are_not_done(examples: Examples) -> None:
    def output() -> str:
        of_all = "SELECT c.state, c.output FROM callback c JOIN deadline d ON d.callback_id = c.id"
        return str(stored(examples.airflow, of_all))

    wait_until(lambda: "success" in output(), "the deadline's callback", 120)
    assert str(STUCK) in output() and "PREPARED" in output()
    assert examples.ended("deadline_alert")["state"] == "success"


@runs("load_in_doubt")
def test_a_person_recovers_a_load_that_no_run_is_left_to_commit(examples: Examples) -> None:
    with examples.session() as session:
        world = examples.world(session, "left_behind", "deleted.load", "recovered")
        world.decide(world.prepare(["recovered"]))
    examples.trigger("load_in_doubt", "one", conf={"name": "deleted.load", "key": "recovered"})
    examples.answer("load_in_doubt", "one", "ask", "Recover", reason="")
    assert examples.ended("load_in_doubt", "one")["state"] == "success"
    assert examples.returned("load_in_doubt", "one", "act") == "COMMITTED"


def test_maintenance_rolls_forward_what_is_decided_and_leaves_alone_what_may_be_at_work(examples: Examples) -> None:
    """Runs last: nothing of the loads above is left, and none begins while it looks (some have an hourly schedule)."""
    examples.come_to_rest(DAGS)
    with examples.session() as session:
        world = examples.world(session, "left_behind", "deleted.load", "decided")
        world.decide(world.prepare(["decided"]))
    examples.unpause("kafka_eos_maintenance")
    first = examples.first("kafka_eos_maintenance")  # each quarter of an hour brings another one
    run = examples.ended("kafka_eos_maintenance", first)
    assert run["state"] == "success", examples.states("kafka_eos_maintenance", run["dag_run_id"])
    found = examples.returned("kafka_eos_maintenance", run["dag_run_id"], "sweep")["airflow"]
    assert [s["load"] for s in found["swept"]] == ["airflow/deleted.load/decided"]
    assert (found["numbers"]["open_transactions"], found["numbers"]["undecided_attempts"]) == (1, 1)
    with examples.ledger() as ledger:
        decided = ledger.load(LoadIdentity("airflow", "deleted.load", "decided"))
        (stuck,) = ledger.attempts(STUCK)
    assert decided is not None and decided.state is LoadState.COMMITTED
    assert stuck.is_undecided
