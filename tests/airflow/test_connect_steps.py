"""The steps of a load by a Spark Connect server, by their operators; and what is over while a server goes on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_kafka_eos.ledger.rows import AttemptRow, RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.operators.by_connect import remote_of
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.protocol.stages.begin import reference, submit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTxnState
from tests.airflow.conftest import SECRET
from tests.airflow.steps import LOAD, OWNER, connection, open_ids, refused, run, session
from tests.airflow.test_repreparing_steps import HUNDRED, TWO, all_there_once, finish, lose, prepared
from tests.connect.server import Server, server
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

TOKEN = "t0ken/with+signs=="
BY_CONNECT = {"conn_id": "spark_connect"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def home_with_server(
    home: Path, kafka: LocalKafka, running: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Kafka's connection has a password that this broker does not ask for; the server has it, too."""
    extra = {"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": SECRET}
    connection(monkeypatch, "kafka_default", "kafka", extra=extra)
    connection(monkeypatch, "spark_connect", "spark_connect", host="127.0.0.1", port=running.port)
    file = running.login("kafka_default", {"sasl.password": SECRET})
    yield home
    file.unlink(missing_ok=True)


def test_a_load_goes_its_way_and_what_is_lost_is_left_to_spark_submit(
    home_with_server: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic(3)
    manifest = prepared(home_with_server, "whole", topics=[name], sql=TWO, **BY_CONNECT)
    assert (manifest.records, len(manifest.transactions)) == (100, 2)
    lose(kafka, "whole", manifest, 1)
    assert "RecordsGoneError: Spark partition 1 " in refused("commit", "whole")
    text = refused("prepare", "whole", topics=[name], sql=TWO, **BY_CONNECT)
    assert "must be prepared again, and the Spark Connect server" in text
    with session() as opened:
        load = LoadIdentity("airflow", LOAD, "whole")
        assert opened.ledger.state(load) is LoadState.REPAIRING
        assert {row.state for row in opened.ledger.repairs(load)} == {RepairState.UNDECIDABLE}, "none is under way"
        assert opened.ledger.attempts(load)[0].has_fence
    done = run("prepare", "whole", topics=[name], sql=TWO)  # as the error says: by spark-submit
    assert (done["verdict"], done["prepared_again"], done["records"]) == ("commit", [1], 50)
    finish("whole")
    all_there_once(kafka, "whole", name, 3, HUNDRED)
    assert run("cleanup", "whole")["problem"] is None


def test_a_job_of_a_file_and_what_it_does_on_executors(
    home_with_server: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    """They have no such file: what is in it travels by value."""
    (home_with_server / "rows.py").write_text(
        "from pyspark.sql import functions as f\n"
        "from pyspark.sql.types import StringType\n"
        "def named(n):\n    return f'v{n}'\n"
        "def load(spark, records):\n"
        "    return spark.range(records).select(f.udf(named, StringType())('id').alias('value'))\n"
    )
    name = topic(1)
    arguments = {"job": str(home_with_server / "rows.py"), "job_args": {"records": 100}}
    prepared(home_with_server, "file", topics=[name], **arguments, **BY_CONNECT)
    finish("file")
    all_there_once(kafka, "file", name, 1, HUNDRED)


def test_a_connection_that_is_not_found_is_no_answer(
    home_with_server: Path, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secrets backend that is away looks the same: a spark-submit to YARN would be the wrong conclusion."""
    run("begin", "unknown")
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_CONNECT")
    with pytest.raises(AirflowException, match="is not defined, or cannot be looked up now") as caught:
        run("prepare", "unknown", topics=[topic()], **BY_CONNECT)
    assert not isinstance(caught.value, AirflowFailException), "it is tried again"
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, "unknown"))
    assert not row.is_submitted
    assert remote_of("spark_default") is None
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    assert remote_of("spark_default") is None, "which nobody has named: as ever, it is the Spark hook's to say"


def test_a_token_is_not_shown_by_any_error(
    home_with_server: Path, topic: Callable[..., str], running: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_kafka_eos.connect.remote.ANSWER_S", 3)
    fields = {"host": "127.0.0.1", "port": running.port, "password": TOKEN}
    connection(monkeypatch, "spark_connect", "spark_connect", **fields)
    run("begin", "token")
    with pytest.raises(AirflowException, match="SparkUnavailableError") as caught:
        run("prepare", "token", topics=[topic()], **BY_CONNECT)  # a token wants TLS, which this server has not
    assert TOKEN not in str(caught.value)
    connection(monkeypatch, "spark_connect", "spark_connect", host=f"127.0.0.1/;token={TOKEN}")
    text = refused("prepare", "token", topics=[topic()], **BY_CONNECT)
    assert "more than a host in it" in text and TOKEN not in text
    with session() as opened:
        reasons = [row.reason for row in opened.ledger.attempts(LoadIdentity("airflow", LOAD, "token"))]
    assert not any(TOKEN in (reason or "") for reason in reasons)


def test_what_is_spark_submits_is_refused_before_an_attempt(home_with_server: Path, topic: Callable[..., str]) -> None:
    run("begin", "submits")
    for name, value in (("driver_memory", "2g"), ("wait_in_triggerer", True), ("post_submit_commands", ["true"])):
        text = refused("prepare", "submits", topics=[topic()], **BY_CONNECT, **{name: value})
        assert f"spark_args={{{name!r}: …}} is of spark-submit" in text
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, "submits"))
    assert not row.is_submitted


# -- what is over ------------------------------------------------------------------------------------------------------


def fenced(key: str) -> tuple[AttemptRow, PreparedTxnState]:
    """An attempt whose client has died behind its fence; on another host, whose files are not here."""
    from airflow_kafka_eos.hooks import KafkaEosHook

    with session() as opened:
        row = submit(opened, LoadIdentity("airflow", LOAD, key), owner=OWNER, has_fence=True)
        ref = reference(opened, row)
    stood = fences.stand(KafkaEosHook().resolve().settings, ref, 2**62, lambda: None)
    assert isinstance(stood, PreparedTxnState)
    return row, stood


def stands_at(row: AttemptRow) -> PreparedTxnState:
    with session() as opened:
        name = str(reference(opened, row).common_id(IdRole.PROBE))
        return opened.coordinator.describe([name])[name].state  # type: ignore[no-any-return]


def test_begin_prepare_and_cleanup_move_the_fence_of_what_is_over(
    home_with_server: Path, topic: Callable[..., str]
) -> None:
    run("begin", "fence")
    row, stood = fenced("fence")
    assert stands_at(row) == stood
    run("prepare", "fence", topics=[topic()], **BY_CONNECT)  # a retry
    assert stands_at(row) != stood
    run("begin", "ended")
    row, stood = fenced("ended")
    assert run("cleanup", "ended", quiet_period=timedelta(0))["problem"] is None
    assert stands_at(row) != stood


@pytest.mark.parametrize("cleared", ["begin", "prepare", "cleanup"])
def test_whoever_clears_an_old_load_leaves_anothers_fence(
    home_with_server: Path, kafka: LocalKafka, topic: Callable[..., str], cleared: str
) -> None:
    """They have the same load name."""
    name = topic(3)
    run("begin", f"old {cleared}")
    fenced(f"old {cleared}")
    finish_by = {"topics": [name], "sql": TWO, **BY_CONNECT}
    run("prepare", f"old {cleared}", **finish_by)
    finish(f"old {cleared}")
    run("cleanup", f"old {cleared}")
    run("begin", f"new {cleared}")
    row, stood = fenced(f"new {cleared}")
    run(cleared, f"old {cleared}", **(finish_by if cleared == "prepare" else {}))
    assert stands_at(row) == stood


@pytest.mark.parametrize(
    ("argument", "value"), [("transaction_naming", "pooling"), ("writer", "confluent")], ids=["pooled", "librdkafka"]
)
def test_what_could_not_be_stopped_is_refused_before_an_attempt(
    home_with_server: Path, topic: Callable[..., str], argument: str, value: str
) -> None:
    run("begin", argument)
    text = refused("prepare", argument, topics=[topic()], **{argument: value}, **BY_CONNECT)
    assert f"{argument}={value!r} with a Spark Connect server" in text
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, argument))
    assert not row.is_submitted


def test_cleanup_needs_no_server(
    home_with_server: Path, kafka: LocalKafka, topic: Callable[..., str], running: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It has died behind the write; and so has whoever would have reported it."""
    name = topic(2)
    monkeypatch.setattr("airflow_kafka_eos.connect.remote.TRIES", 2)
    run("begin", "gone")

    def dies(*_: Any) -> bool:
        running.kill()
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_kafka_eos.connect.engine._ran_once", dies)
    monkeypatch.setattr("airflow_kafka_eos.spark.attempt_writer.AttemptWriter.commit", dies)
    monkeypatch.setattr("airflow_kafka_eos.spark.attempt_writer.AttemptWriter.abort", lambda *_: None)
    try:
        with pytest.raises(KeyboardInterrupt):
            run("prepare", "gone", topics=[name], sql=TWO, **BY_CONNECT)
        monkeypatch.undo()
        connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap_servers})
        monkeypatch.setenv("AIRFLOW_HOME", str(home_with_server))
        assert len(open_ids("gone")) == 2, "what the dead one has left"
        assert run("cleanup", "gone")["problem"] is None
        wait_until(lambda: open_ids("gone") == [], "the end of what was open")
        assert committed_values(kafka.bootstrap_servers, name, 2) == []
    finally:
        running.start()


def test_the_doctor_looks_at_the_server(
    home_with_server: Path, running: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*more: str) -> dict[str, tuple[str, str]]:
        command = ["airflow-kafka-eos", "doctor", "--spark-conn-id", "spark_connect", "--output", "json", *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        assert SECRET not in done.stdout + done.stderr
        return {one["id"]: (one["severity"], one["seen"]) for one in json.loads(done.stdout)}

    seen = found("--kafka-conn-id", "kafka_default")
    assert {seen[f"connect-{name}"][0] for name in ("reachable", "package", "login", "runs-once")} == {"ok"}
    (running.logins / "kafka_default.json").unlink()
    severity, text = found("--kafka-conn-id", "kafka_default")["connect-login"]
    assert severity == "error" and "the Kafka login 'kafka_default' is not on" in text
    connection_of_a_url = json.dumps({"conn_type": "spark_connect", "host": "spark/;token=x"})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT", connection_of_a_url)
    seen = found("--kafka-conn-id", "kafka_default")
    assert seen["connect-reachable"][0] == "error" and len(seen) > 3, "what else was found is shown, too"
