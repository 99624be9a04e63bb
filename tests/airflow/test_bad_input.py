"""Bad input as the task log shows it: each operator's own ``execute``, on real connections, ledger, broker and Spark.

Only Airflow's context is made by hand; the runs of whole DAGs are in test_standalone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import (
    CONTEXT,
    LOAD,
    STEPS,
    a_prepared_load,
    connection,
    open_ids,
    operator,
    refused,
    run,
    session,
    state,
)
from tests.secured import PASSWORD, Secured, free_port

# -- connections ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_kafka_connection_without_servers_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    connection(monkeypatch, "kafka_default", "kafka", extra={"sasl.password": PASSWORD})
    text = refused(step, "k")
    assert "Airflow connection 'kafka_default': the Kafka setting bootstrap.servers is ''. Set it to" in text
    assert PASSWORD not in text


@pytest.mark.parametrize("step", STEPS)
def test_a_ledger_connection_of_a_wrong_type_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    connection(monkeypatch, "web", "http", host="ledger", password=PASSWORD)
    text = refused(step, "k", ledger_conn_id="web")
    assert (
        "connection 'web' of type 'http' cannot hold the ledger. Use a connection of one of the types" in text
    )
    assert PASSWORD not in text


@pytest.mark.parametrize("step", STEPS[:-1])  # cleanup waits for a ledger that is away
def test_a_ledger_that_is_not_upgraded_names_the_command(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from airflow_kafka_eos.errors import LedgerUnavailableError

    connection(monkeypatch, "own", "sqlite", host=str(home / "own.db"))
    # transient: once the command has run, a retry goes through
    with pytest.raises(
        LedgerUnavailableError, match=r"own\.db has not been created.*`airflow-kafka-eos ledger upg"
    ):
        run(step, "k", ledger_conn_id="own")


@pytest.mark.parametrize("step", STEPS)
def test_a_refused_login_ends_the_task_and_names_what_to_check(
    home: Path, secured: Secured, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    if step == "cleanup":
        run("begin", "k")
    connection(monkeypatch, "kafka_default", "kafka", extra=secured.extra(sasl_password=PASSWORD + "-wrong"))
    text = refused(step, "k")
    assert f"the Kafka brokers at {secured.address} refused the login" in text
    assert "Check security.protocol, sasl.mechanism, sasl.username and sasl.password" in text
    assert PASSWORD not in text


def test_a_broker_that_is_not_there_is_named_and_may_be_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_kafka_eos.errors import BrokerUnavailableError
    from airflow_kafka_eos.hooks import KafkaEosHook

    where = f"127.0.0.1:{free_port()}"
    connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": where})
    with (
        pytest.raises(
            BrokerUnavailableError, match=f"brokers at {where} cannot be reached.*Check bootstrap.servers"
        ),
        KafkaEosHook().resolve().session("airflow", timeout_s=1),
    ):
        pass


# -- prepare -------------------------------------------------------------------------------------------------------


def test_arguments_that_are_no_json_take_no_attempt(home: Path) -> None:
    run("begin", "both")
    prepare = operator("prepare", "both", job_args={"day": "{{ day }}"})
    prepare.job_args = {"day": object()}  # as it was rendered
    with pytest.raises(AirflowFailException, match=r"job_args.* of type object, which cannot be written as JSON"):
        prepare.execute(CONTEXT)
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, "both"))
    assert row.submitted_by is None


@pytest.mark.spark
def test_what_the_application_refuses_is_the_tasks_own_error(home: Path, topic: Callable[..., str]) -> None:
    name = topic(config={"max.message.bytes": "4000"})
    run("begin", "large")
    rows = "select /*+ COALESCE(1) */ * from (select 'g' value union all select repeat('v', 5000))"
    text = refused("prepare", "large", topics=[name], sql=rows)
    wanted = f"RecordError: a record without key of 5000 bytes (key, value and headers) is too large for topic '{name}'"
    assert text.startswith(wanted)
    assert "Make the record smaller, or raise the topic's max.message.bytes" in text
    run("cleanup", "large")
    assert open_ids("large") == []


@pytest.mark.spark
def test_what_spark_fails_with_is_in_the_tasks_error_and_may_be_tried_again(
    home: Path, topic: Callable[..., str]
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    run("begin", "lost")
    with pytest.raises(AirflowException) as caught:
        run("prepare", "lost", topics=[topic()], sql="select cast(raise_error('no such day') as string) value")
    assert not isinstance(caught.value, AirflowFailException)
    # the cause, not the command line and what Spark prints behind it; Airflow's own error, with these, is its cause
    (told,) = str(caught.value).splitlines()
    assert told.startswith("the Spark application failed: ")
    assert "SparkRuntimeException: [USER_RAISED_EXCEPTION] no such day" in told
    assert "spark-submit" in str(caught.value.__cause__)
    load = LoadIdentity("airflow", LOAD, "lost")
    of = f" [load {load}, attempt 1]"  # for whoever has the error alone
    assert told.endswith(of)
    told = told.removesuffix(of)
    with session() as opened:
        row = opened.ledger.load(load)
        assert row is not None and row.reason == f"prepare failed: {told}"
    run("cleanup", "lost")
    assert open_ids("lost") == []
    with session() as opened:
        assert opened.ledger.attempts(load)[0].reason == f"cleanup: prepare failed: {told}"


@pytest.mark.spark
def test_names_of_any_characters_go_all_the_way(home: Path, topic: Callable[..., str]) -> None:
    key, name = "x.y:+ é", topic()
    run("begin", key)
    prepared = run("prepare", key, topics=[name])
    assert (prepared["load"], prepared["records"]) == (f"airflow/{LOAD}/{key}", 1)
    (listed,) = open_ids(key)
    found = TransactionalId.parse(listed)
    assert found is not None
    assert found.load == LoadIdentity("airflow", LOAD, key)
    # names that would collide if they were only glued together
    assert open_ids("y:+ é") == open_ids("x") == open_ids("x.y:+ é.1") == []
    assert list(run("decide", key)["prepared_transaction_states"]) == [listed]
    assert run("commit", key)["records"] == 1
    run("cleanup", key)
    assert open_ids(key) == []


@pytest.mark.spark
def test_scope_load_goes_all_the_way_as_one_transaction(home: Path, topic: Callable[..., str]) -> None:
    name = topic(3)
    run("begin", "whole")
    rows = "select cast(id as string) key, 'v' value from range(0, 90, 1, 2)"
    prepared = run("prepare", "whole", topics=[name], sql=rows, scope="load", two_phase_commit="required")
    assert {k: prepared[k] for k in ("records", "transactions", "scope", "two_phase_commit", "writer")} == {
        "records": 90, "transactions": 1, "scope": "load", "two_phase_commit": True, "writer": "arrow",
    }  # fmt: skip
    (listed,) = open_ids("whole")
    assert list(run("decide", "whole")["prepared_transaction_states"]) == [listed]
    assert run("commit", "whole")["records"] == 90
    run("cleanup", "whole")
    assert (open_ids("whole"), state("whole")) == ([], LoadState.COMMITTED)
    with session() as opened:
        (row,) = opened.ledger.attempts(LoadIdentity("airflow", LOAD, "whole"))
    assert row.how == "scope load, two-phase commit, writer arrow"


# -- decide --------------------------------------------------------------------------------------------------------


BAD_MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda d: None, "ManifestError: there is no manifest at"),
    "of another attempt": (
        lambda d: d | {"attempt": d["attempt"] | {"number": 2}},
        "ManifestError: the manifest is of airflow/a.b/ü %/of another attempt attempt 2",
    ),
    "of an unknown version": (
        lambda d: d | {"schema_version": 99},
        "ManifestError: the manifest has schema_version 99, this version of airflow-kafka-eos reads 3. Install",
    ),
}


@pytest.mark.parametrize("case", BAD_MANIFESTS)
def test_a_bad_manifest_decides_nothing_and_cleanup_ends_what_it_would_have_named(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], case: str
) -> None:
    edit, wanted = BAD_MANIFESTS[case]
    _, path = a_prepared_load(home, kafka, case, topic(), 3)
    document = edit(json.loads(path.read_text()))
    path.unlink() if document is None else path.write_text(json.dumps(document))
    assert len(open_ids(case)) == 1
    text = refused("decide", case)
    assert wanted in text
    assert "lear" in text.partition(".")[2], "no remedy"
    run("cleanup", case)
    assert open_ids(case) == []
    assert state(case) is LoadState.ABORTED


def test_a_load_of_no_records_is_committed_where_it_may_be_empty(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    a_prepared_load(home, kafka, "empty", topic(), 0)
    assert run("decide", "empty", min_records=0)["records"] == 0
    assert run("commit", "empty")["records"] == 0
    assert state("empty") is LoadState.COMMITTED


def test_a_load_of_no_records_is_refused_by_default_and_does_not_take_the_key(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    """A job that ran before its data was there: the key can be loaded later."""
    name = topic()
    a_prepared_load(home, kafka, "few", name, 0)
    assert (
        "CheckFailedError: the load is refused: 0 records, fewer than min_records=1. Was the data there when the job "
        "read it? The key few is not taken: clear prepare, with what is downstream, once it is. Where a load may be "
        "empty, set checks=Checks(min_records=0). "
        f"[load airflow/{LOAD}/few, attempt 1]"
    ) in refused("decide", "few")
    run("cleanup", "few")
    assert state("few") is LoadState.ABORTED
    a_prepared_load(home, kafka, "few", name, 2)
    assert run("decide", "few")["records"] == 2
    run("commit", "few")
    assert state("few") is LoadState.COMMITTED
