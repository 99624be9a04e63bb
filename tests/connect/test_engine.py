"""A spec in, a manifest out, by a real Spark Connect server whose executors have no gRPC."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.connect import shipped, task
from airflow_kafka_eos.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    ManifestError,
    OtherClusterError,
    SparkUnavailableError,
    StoppedError,
    SupersededError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.attempt_writer import AttemptWriter
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from airflow_kafka_eos.testing import Gate
from tests.connect.conftest import Preparing
from tests.connect.server import Server
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values
from tests.spark.conftest import REPOSITORY

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1800)]

patiently = partial(wait_until, seconds=300)
#: That no connection's broker asks for, and that is searched for where people can look.
SECRET = "zq8-c0nnect-hw4"


def rows(records: int, tasks: int = 3) -> Callable[[Any], Any]:
    return lambda spark: spark.range(0, records, numPartitions=tasks).selectExpr(
        "concat('k', id) key", "concat('v', id) value"
    )


def values(records: int) -> list[str]:
    return sorted(f"v{n}" for n in range(records))


@pytest.mark.parametrize("scope", TransactionScope)
def test_it_is_prepared_and_can_be_committed(
    preparing: Preparing, kafka: LocalKafka, topic: Callable[..., str], scope: TransactionScope
) -> None:
    name = topic(3)
    made = preparing(rows(120), name, scope=scope)
    assert (made.records, made.scope, made.writer) == (120, scope, "arrow")
    assert len(made.transactions) == (3 if scope is TransactionScope.TASK else 1)
    assert committed_values(kafka.bootstrap_servers, name, 3) == [], "prepared is invisible"
    assert preparing.open_ids() == sorted(t.transactional_id for t in made.transactions)
    assert not preparing.store.writers_left(made), "the server is set to run nothing twice"
    preparing.commit(made)
    patiently(lambda: preparing.open_ids() == [], "the end of the transactions")
    assert committed_values(kafka.bootstrap_servers, name, 3) == values(120)
    said = [line.partition(f"load {preparing.ref}: ")[2].split()[0] for line in preparing.lines]
    assert [word for word in said if word in ("claimed", "writing", "prepared")] == [
        "claimed",
        "writing",
        "prepared",
    ]


def test_sql_and_columns_that_become_values(
    preparing: Preparing, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic()
    made = preparing("select cast(id as int) n from range(0, 2, 1, 1)", name, value_format="json")
    preparing.commit(made)
    patiently(lambda: preparing.open_ids() == [], "the end of the transactions")
    assert committed_values(kafka.bootstrap_servers, name, 1) == ['{"n":0}', '{"n":1}']


def test_a_cursors_range_reaches_the_job_which_may_choose_its_end(
    preparing: Preparing, topic: Callable[..., str]
) -> None:
    def job(spark: Any, since: int, until: int | None) -> Any:
        return rows(until - since if until else 5)(spark), until or since + 5

    made = preparing(job, topic(), reads={"since": 10, "until": 14})
    assert made.records == 4
    made = preparing(job, topic(), attempt=2, reads={"since": 10, "until": None})
    assert (made.records, preparing.store.until(made.attempt)) == (5, "15")
    query = "select cast(id as string) value from range(:since, :until)"
    assert preparing(query, topic(), attempt=3, reads={"since": 3, "until": 9}).records == 6


def test_a_dataframe_without_rows_or_partitions(preparing: Preparing, topic: Callable[..., str]) -> None:
    for attempt, query in enumerate(("select 'v' value where false", "select 'v' value from range(0, 0)"), 1):
        made = preparing(query, topic(), attempt=attempt)
        assert (made.records, made.transactions) == (0, ())
    assert preparing.begun(1) == preparing.begun(2) == []


def test_what_an_author_has_arranged_stays_so(preparing: Preparing, topic: Callable[..., str]) -> None:
    made = preparing(lambda spark: rows(60)(spark).repartition(5), topic(2))
    assert [entry.spark_partition for entry in made.entries] == [0, 1, 2, 3, 4]


def test_a_conf_of_the_authors_is_the_sessions(preparing: Preparing, topic: Callable[..., str]) -> None:
    preparing.conf = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    seen = []

    def job(spark: Any) -> Any:
        seen.append(spark.conf.get("spark.sql.session.timeZone"))
        return rows(3)(spark)

    preparing(job, topic())
    assert seen == ["Asia/Tokyo"]


def test_executors_that_come_to_another_cluster_write_nothing(
    preparing: Preparing, topic: Callable[..., str]
) -> None:
    """Only its address is the same."""
    preparing.cluster_id = "another-cluster-id"
    with pytest.raises(
        OtherClusterError, match=r"executors come to Kafka cluster .* belongs to another-cluster-id"
    ):
        preparing(rows(10), topic())
    assert preparing.begun() == []


def test_a_dataframe_of_another_session_is_refused(preparing: Preparing, topic: Callable[..., str]) -> None:
    from pyspark.sql.connect.session import SparkSession

    others = []

    def job(spark: Any) -> Any:
        others.append(SparkSession.builder.remote(f"sc://127.0.0.1:{preparing.server.port}").create())
        return rows(3)(others[0])

    try:
        with pytest.raises(ConfigurationError, match="returned a DataFrame of another Spark session"):
            preparing(job, topic())
    finally:
        others[0].stop()
    with pytest.raises(ConfigurationError, match="returned nothing, not a Spark DataFrame"):
        preparing(lambda spark: None, topic(), attempt=2)
    assert preparing.begun() == []


def test_executors_with_another_version_of_the_package_write_nothing(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "own_version", lambda: "99.0")
    with pytest.raises(ConfigurationError) as caught:
        preparing(rows(10), topic())
    assert "Airflow's worker has 99.0" in str(caught.value)
    assert "pip install airflow-kafka-eos==99.0 there" in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"Airflow's worker has 99\.0"):
        preparing(rows(10), topic(), attempt=2, scope=TransactionScope.LOAD)
    assert preparing.begun(1) == []
    assert (
        preparing.begun(2) == [f"tests.00000000cc.connect.{preparing.ref.load.key}.2-load"]
        or not preparing.open_ids()
    )


def test_another_run_of_the_server_writes_nothing(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task attempts are counted from 0 again: their ids would be the lost run's."""
    monkeypatch.setattr(task, "APPLICATION", "spark.app.name")  # on this side alone
    with pytest.raises(SparkUnavailableError, match=r"server was started again: .* written by org\.apache\.spark"):
        preparing(rows(10), topic())
    assert preparing.begun() == []


def test_an_attempt_is_written_by_one_client(preparing: Preparing, topic: Callable[..., str]) -> None:
    name = topic()
    made = preparing(rows(10), name)
    with pytest.raises(UndecidableError, match="already claimed by"):
        preparing(rows(10), name)
    assert preparing.open_ids() == sorted(t.transactional_id for t in made.transactions), (
        "the first one's stay"
    )


def test_reports_that_do_not_all_come_make_no_manifest(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    from pyspark.sql.connect.dataframe import DataFrame

    whole = DataFrame.toArrow

    def cut(self: Any) -> pa.Table:
        found = whole(self)
        return found.slice(0, len(found) - 1) if len(found) > 1 else found

    monkeypatch.setattr(DataFrame, "toArrow", cut)
    with pytest.raises(ManifestError, match="3 were counted, and 2 have come"):
        preparing(rows(30), topic())
    with pytest.raises(ManifestError, match="prepare gave this attempt up"):
        preparing.store.read(preparing.ref)


def test_an_error_of_the_authors_query_is_told_in_short(
    preparing: Preparing, topic: Callable[..., str]
) -> None:
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND") as caught:
        preparing("select * from nowhere", topic())
    assert caught.value.__cause__ is None and caught.value.__suppress_context__, "it quotes the plan"


# -- logins ------------------------------------------------------------------------------------------------------------


def with_secret(preparing: Preparing) -> KafkaSettings:
    """The broker's listener asks for no password."""
    return KafkaSettings.from_mapping(preparing.settings.texts | {"sasl.password": SECRET})


def test_a_login_is_the_servers_own_and_travels_nowhere(
    preparing: Preparing, topic: Callable[..., str]
) -> None:
    preparing.settings = with_secret(preparing)
    with pytest.raises(ConfigurationError) as caught:
        preparing(rows(10), topic())
    assert "the Kafka login 'kafka_default' is not on" in str(caught.value)
    assert "sasl.password of the Airflow connection are not sent" in str(caught.value)
    assert preparing.begun() == []
    file = preparing.server.login("kafka_default", {"sasl.password": SECRET})
    try:
        made = preparing(rows(10), topic(), attempt=2)
        assert made.records == 10
        file.chmod(0o644)
        with pytest.raises(ConfigurationError, match="may be read or written by everybody"):
            preparing(rows(10), topic(), attempt=3)
    finally:
        file.unlink()
    for path in (preparing.server.log, *Path(preparing.store.base).rglob("*.*")):
        if path.is_file():
            assert SECRET not in path.read_text(encoding="utf-8", errors="replace"), path
    assert SECRET not in "\n".join(preparing.lines)


def test_several_logins_on_one_server(preparing: Preparing, topic: Callable[..., str]) -> None:
    """In the same Python worker one after the other: each load has its own, and only that."""
    preparing.settings = with_secret(preparing)
    files = [
        preparing.server.login("good", {"sasl.password": SECRET}),
        preparing.server.login(
            "elsewhere", {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": "2000"}
        ),
    ]
    try:
        preparing.login = "good"
        assert preparing(rows(5, 1), topic()).records == 5
        preparing.login = "elsewhere"
        with pytest.raises(BrokerUnavailableError):
            preparing(rows(5, 1), topic(), attempt=2)
        assert preparing.begun(2) == []
        preparing.login = "good"
        assert preparing(rows(5, 1), topic(), attempt=3).records == 5
    finally:
        for file in files:
            file.unlink()


def test_what_is_sent_holds_no_secret(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan as the server gets it."""
    from pyspark.sql.connect.client.core import SparkConnectClient

    plans = []
    sent = SparkConnectClient._execute_plan_request_with_metadata

    def seen(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = sent(self, *args, **kwargs)
        plans.append(made)
        return made

    monkeypatch.setattr(SparkConnectClient, "_execute_plan_request_with_metadata", seen)
    execute = SparkConnectClient._execute_and_fetch_as_iterator

    def fetched(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        plans.append(req)
        return execute(self, req, *args, **kwargs)

    monkeypatch.setattr(SparkConnectClient, "_execute_and_fetch_as_iterator", fetched)
    preparing.settings = with_secret(preparing)
    file = preparing.server.login("kafka_default", {"sasl.password": SECRET})
    try:
        preparing(rows(10), topic())
    finally:
        file.unlink()
    texts = [plan.SerializeToString() for plan in plans]
    assert any(b"kafka_eos" in text and b"bootstrap.servers" in text for text in texts), (
        "the write was among them"
    )
    assert not any(SECRET.encode() in text for text in texts)


# -- what ends ---------------------------------------------------------------------------------------------------------


def test_it_stops_when_told(preparing: Preparing, topic: Callable[..., str], tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()

    def tell() -> None:
        patiently(lambda: gate.reached, "rows")
        preparing.stop.set()

    threading.Thread(target=tell).start()
    with pytest.raises(StoppedError, match="its operation at the server is interrupted"):
        preparing(lambda spark: held(spark, gate), topic(2))
    with pytest.raises(ManifestError):
        preparing.store.read(preparing.ref)


def held(spark: Any, gate: Gate, tasks: int = 2) -> Any:
    from airflow_kafka_eos.testing.rows import spark as job

    return job(spark, 100, str(gate.folder), tasks)


def test_a_superseded_client_interrupts_and_says_by_whom(
    preparing: Preparing, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_kafka_eos.spark.orphan.POLL_S", 0.2)
    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()

    def supersede() -> None:
        patiently(lambda: gate.reached, "rows")
        preparing.store.note_superseded(preparing.ref, "aborted by a test")

    threading.Thread(target=supersede).start()
    with pytest.raises(SupersededError, match="aborted by a test"):
        preparing(lambda spark: held(spark, gate), topic(2))


def test_a_superseded_client_of_a_server_that_hangs_fails_and_does_not_exit(
    preparing: Preparing, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is Airflow's task: an exit would be tried again, and supersede the newest attempt in turn."""
    for name, seconds in (("POLL_S", 0.2), ("_LAST_S", 20.0), ("_WAKE_S", 1.0)):
        monkeypatch.setattr(f"airflow_kafka_eos.spark.orphan.{name}", seconds)
    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()
    assert preparing.server.process is not None
    group = preparing.server.process.pid

    def supersede() -> None:
        patiently(lambda: gate.reached, "rows")
        os.killpg(group, signal.SIGSTOP)
        preparing.store.note_superseded(preparing.ref, "aborted by a test")

    thread = threading.Thread(target=supersede)
    thread.start()
    try:
        with pytest.raises(SupersededError, match="aborted by a test"):
            preparing(lambda spark: held(spark, gate), topic(2))
    finally:
        thread.join()
        os.killpg(group, signal.SIGCONT)
        gate.open()


@pytest.mark.parametrize("scope", TransactionScope)
def test_an_attempt_that_is_over_before_it_begins_sends_nothing(
    preparing: Preparing, topic: Callable[..., str], scope: TransactionScope
) -> None:
    """Whoever has ended it did not find a fence yet; and this host may not see its note."""

    def job(spark: Any) -> Any:
        preparing.over = "aborted by a test"
        return rows(10)(spark)

    with pytest.raises(SupersededError, match="aborted by a test"):
        preparing(job, topic(), scope=scope)
    assert preparing.begun() == [], "nor is the shared id of scope load initialised"


def test_an_orphan_of_a_killed_client_begins_nothing_more_once_its_attempt_is_over(
    preparing: Preparing, topic: Callable[..., str], tmp_path: Path
) -> None:
    """Four tasks, two at a time. The server holds on to the operation for minutes; it sees no note, but the fence."""
    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()
    name = topic(2)
    deadline = int(time.time() * 1000) + 1_800_000
    options = WriteOptions(preparing.ref, preparing.store.base, (name,), 900_000, deadline)
    job_args = {"records": 100, "folder": str(gate.folder), "tasks": 4}
    spec = ApplicationSpec(options, job="tests.connect.wide:spark", job_args=job_args)
    command = [sys.executable, "-m", "tests.testing.by_connect", str(preparing.server.port), spec.to_json()]
    environment = {**os.environ, SETTINGS_VARIABLE: preparing.settings.to_json(), "PYTHONPATH": REPOSITORY}
    client = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        patiently(lambda: len(list(gate.folder.glob("reached-*"))) == 2, "two tasks that write")
    finally:
        os.killpg(client.pid, signal.SIGKILL)
        client.wait()
    patiently(lambda: len(preparing.begun()) == 2, "two transactions")
    with Wire(preparing.settings) as wire:
        coordinator = Coordinator(wire, namespace="tests", ledger_id=preparing.ref.ledger_id)
        assert fences.move(coordinator, [preparing.ref], set())
    gate.open()
    patiently(
        lambda: "its fence" in preparing.server.log.read_text(errors="replace") or len(preparing.begun()) > 2,
        "a task that finds it",
    )
    time.sleep(2)
    assert len(preparing.begun()) == 2
    with pytest.raises(ManifestError):
        preparing.store.read(preparing.ref)


def test_a_server_that_stands_still_behind_the_write_is_not_waited_for(
    preparing: Preparing, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is prepared, and waits to be decided."""
    assert preparing.server.process is not None
    group = preparing.server.process.pid
    went_on = threading.Event()

    def go_on() -> None:
        went_on.set()
        os.killpg(group, signal.SIGCONT)

    patience = threading.Timer(240, go_on)
    commit = AttemptWriter.commit

    def then_it_stands_still(self: AttemptWriter, messages: Any) -> None:
        commit(self, messages)
        patience.start()
        os.killpg(group, signal.SIGSTOP)

    monkeypatch.setattr(AttemptWriter, "commit", then_it_stands_still)
    try:
        assert preparing(rows(10), topic()).records == 10
        assert not went_on.is_set()
    finally:
        patience.cancel()
        go_on()


def test_a_server_that_dies_is_told_and_the_next_attempt_goes_through(
    kafka: LocalKafka,
    preparing: Preparing,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_kafka_eos.connect.remote.TRIES", 3)
    gate = Gate(tmp_path / "gate")
    gate.folder.mkdir()
    name = topic(2)
    running: Server = preparing.server

    def die() -> None:
        patiently(lambda: gate.reached, "rows")
        running.kill()

    thread = threading.Thread(target=die)
    thread.start()
    try:
        with pytest.raises(SparkUnavailableError, match="does not answer, or was started again"):
            preparing(lambda spark: held(spark, gate), name)
        thread.join()
        with pytest.raises(ManifestError):
            preparing.store.read(preparing.ref)
        monkeypatch.setattr("airflow_kafka_eos.connect.remote.ANSWER_S", 1)
        with pytest.raises(SparkUnavailableError, match="does not answer within 1 s"):
            preparing(rows(10), name, attempt=2)
        monkeypatch.undo()
    finally:
        thread.join()
        running.start()
    made = preparing(rows(10), name, attempt=3)
    assert made.records == 10
    said = re.sub(r"\d+", "N", "\n".join(preparing.lines))
    assert "prepared N records" in said
