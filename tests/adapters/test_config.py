"""Section [kafka_eos] of Airflow's configuration: read, validated, and weaker than arguments."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import conf
from airflow.sdk import DAG

from airflow_kafka_eos import Checks, ExactlyOnceLoad, Transactions, exactly_once_load
from airflow_kafka_eos.cli import parser
from airflow_kafka_eos.cli.ledger import url_of
from airflow_kafka_eos.cli.target import settings_of
from airflow_kafka_eos.config import OPTIONS, deferrable, optional, setting
from airflow_kafka_eos.doctor.finding import Asked
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.ledger.location import FILE_NAME
from airflow_kafka_eos.operators.begin import BeginLoadOperator
from airflow_kafka_eos.operators.commit import CommitLoadOperator
from airflow_kafka_eos.operators.decide import DecideLoadOperator
from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.protocol.guards.id_caps import Caps
from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.spark.options import WriteOptions
from tests.adapters.grouping import grouped

SET = {
    "namespace": "payments",
    "kafka_conn_id": "kafka_prod",
    "ledger_conn_id": "the_ledger",
    "manifest_dir": "/shared/manifests",
    "hold_time": "1800",
    "margin": "90.5",
    "quiet_period": "7",
    "paused_after": "600",
    "abandoned_after": "7200",
    "prune_after": "2592000",
    "sweep_timeout": "90",
    "writer_deadline": "7200",
    "two_phase_commit": "off",
    "transaction_naming": "pooling",
    "transaction_index": "False",
    "deferrable": "False",
}


def configure(monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
    for key, text in options.items():
        monkeypatch.setenv(f"AIRFLOW__KAFKA_EOS__{key.upper()}", text)


def group(**arguments: Any) -> ExactlyOnceLoad:
    with DAG("configured", schedule=None):
        return ExactlyOnceLoad("load", job="j.py", topics=["t"], **grouped(arguments))


def of_maintenance(*names: str) -> dict[str, Any]:
    task = SweepLeftoversOperator(task_id="sweep")
    return {name: getattr(task, name) for name in names}


def seen(load: ExactlyOnceLoad | SimpleNamespace) -> dict[str, Any]:
    every = (load.begin, load.prepare, load.decide, load.commit, load.cleanup, load.loaded)
    ((namespace, kafka, ledger),) = {(t.namespace, t.kafka_conn_id, t.ledger_conn_id) for t in every}
    ((manifests,),) = {(load.prepare.manifest_dir,), (load.decide.manifest_dir,)}
    (waits,) = {load.cleanup.deferrable, load.loaded.deferrable}
    return {
        "namespace": namespace,
        "kafka_conn_id": kafka,
        "ledger_conn_id": ledger,
        "manifest_dir": manifests,
        "hold_time": load.prepare.hold_time,
        "margin": load.decide.margin,
        "quiet_period": load.cleanup.quiet_period,
        **of_maintenance("paused_after", "abandoned_after", "sweep_timeout", "prune_after"),
        "writer_deadline": load.prepare.writer_deadline,
        "two_phase_commit": load.prepare.two_phase_commit,
        "transaction_naming": load.prepare.transaction_naming,
        "transaction_index": setting("transaction_index"),  # by whoever opens a session
        "deferrable": waits,
    }


def test_every_option_reaches_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SET.keys() == OPTIONS.keys()
    configure(monkeypatch, **SET)
    assert seen(group()) == {
        "namespace": "payments",
        "kafka_conn_id": "kafka_prod",
        "ledger_conn_id": "the_ledger",
        "manifest_dir": "/shared/manifests",
        "hold_time": timedelta(minutes=30),
        "margin": timedelta(seconds=90.5),
        "quiet_period": timedelta(seconds=7),
        "paused_after": timedelta(minutes=10),
        "abandoned_after": timedelta(hours=2),
        "sweep_timeout": timedelta(seconds=90),
        "prune_after": timedelta(days=30),
        "writer_deadline": timedelta(hours=2),
        "two_phase_commit": "off",
        "transaction_naming": "pooling",
        "transaction_index": False,
        "deferrable": False,
    }


def a_mapped_group() -> SimpleNamespace:
    with DAG("mapped", schedule=None) as dag:
        ExactlyOnceLoad.partial("tables", job="j.py").expand(topic=["a"])
    return SimpleNamespace(**{task_id.rpartition(".")[2]: dag.get_task(task_id) for task_id in dag.task_ids})


def a_decorated_function() -> ExactlyOnceLoad:
    @exactly_once_load(topics=["t"])
    def rows(spark: Any) -> None: ...

    with DAG("decorated", schedule=None):
        return rows()


def steps_by_hand() -> SimpleNamespace:
    of: dict[str, Any] = {"load_name": "l", "load_key": "k"}
    return SimpleNamespace(
        begin=BeginLoadOperator(task_id="begin", **of),
        prepare=PrepareLoadOperator(task_id="prepare", job="j.py", topics=["t"], **of),
        decide=DecideLoadOperator(task_id="decide", **of),
        commit=CommitLoadOperator(task_id="commit", **of),
        cleanup=CleanupLoadSensor(task_id="cleanup", **of),
        loaded=LoadedSensor(task_id="loaded", **of),
    )


def maintenance() -> dict[str, Any]:
    names = ("kafka_conn_id", "ledger_conn_id", "quiet_period", "paused_after", "abandoned_after", "sweep_timeout")
    task = SweepLeftoversOperator(task_id="sweep")
    (namespace,) = task.namespaces
    return of_maintenance(*names) | {"namespace": namespace}


def cleanup_command() -> dict[str, Any]:
    given = parser().parse_args(["cleanup"])
    return {
        "namespace": given.namespace,
        "quiet_period": timedelta(milliseconds=given.quiet),
        "abandoned_after": timedelta(milliseconds=given.abandoned_after),
        "sweep_timeout": timedelta(seconds=given.deadline),
        **connections(given),
    }


def connections(given: Any) -> dict[str, str]:
    """The Airflow connections that a command goes by, told by what they lead to."""
    kafka, ledger = settings_of(given).bootstrap_servers, url_of(given)
    return {"kafka_conn_id": kafka.partition(":")[0], "ledger_conn_id": ledger.rpartition("/")[2]}


def doctor() -> dict[str, Any]:
    from airflow_kafka_eos.doctor import examine

    given = parser().parse_args(["doctor"])
    asked: list[Any] = []

    def note(*found: Any, **_: Any) -> None:
        asked.append(found[2])
        raise KafkaEosError("seen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine, "examine", note)
        with pytest.raises(KafkaEosError):
            given.run(given)
    return {
        "namespace": asked[0].namespace,
        "hold_time": timedelta(milliseconds=asked[0].hold_time_ms),
        "two_phase_commit": asked[0].two_phase_commit.value,
        **connections(given),
    }


def page() -> dict[str, Any]:
    from airflow_kafka_eos.plugin import actions, dags, reads, views

    swept: dict[str, Any] = {}

    def clean(*_: Any, **how: Any) -> list[Any]:
        swept.update(how)
        return [SimpleNamespace(error=None, up_to=1, aborted=())]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actions, "find_load", lambda *_: SimpleNamespace(newest=SimpleNamespace(responsible="somebody")))
        patch.setattr(actions, "open_session", lambda *_: nullcontext())
        for name, instead in (("_check", None), ("place_to_act", None), ("clean", clean)):
            patch.setattr(actions, name, instead or (lambda *_: None))
        patch.setattr(dags, "note_action", lambda *_, **__: None)
        user: Any = SimpleNamespace(name="somebody")
        asked = actions.Asked(namespace="n", name="l", key="k", attempt=1, reason="")
        actions.act(user, reads.Selection(), views.ActionName.CLEANUP, asked)
    place = dags.configured()
    return {
        "kafka_conn_id": place.kafka_conn_id,
        "ledger_conn_id": place.ledger_conn_id,
        "quiet_period": timedelta(seconds=swept["quiet_s"]),
    }


@pytest.mark.parametrize("section", [{}, SET], ids=["unset", "set"])
def test_whoever_reads_the_section_reads_the_same(
    section: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    configure(monkeypatch, **section)
    for name in ("kafka_default", "kafka_prod"):
        leads_to = {"conn_type": "kafka", "extra": {"bootstrap.servers": f"{name}:1"}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(leads_to))
    monkeypatch.setenv("AIRFLOW_CONN_THE_LEDGER", '{"conn_type": "sqlite", "host": "/the_ledger"}')
    loads = seen(group())
    assert seen(group(transactions=Transactions(scope="load"), checks=Checks(max_records=9))) == loads
    assert seen(a_mapped_group()) == seen(a_decorated_function()) == seen(steps_by_hand()) == loads
    assert loads.keys() == OPTIONS.keys()
    for reader in (maintenance, cleanup_command, doctor, page):
        found = reader()
        if section == {} and reader in (cleanup_command, doctor):  # the file itself, by its path
            assert found.pop("ledger_conn_id") == FILE_NAME and loads["ledger_conn_id"] is None
        assert found == {name: loads[name] for name in found}, reader


def test_what_no_section_says_has_one_default() -> None:
    """The same for a load, its steps by hand, doctor, what Spark is told, and what counts ids."""
    load, hand, given = group(), steps_by_hand(), parser().parse_args(["doctor"])
    caps, asked = Caps(), Asked("n", (), 1)
    for prepare in (load.prepare, hand.prepare):
        ids = (prepare.max_transactional_ids, prepare.max_transactional_ids_of_namespace)
        assert ids == (given.max_transactional_ids, given.max_transactional_ids_of_namespace)
        assert ids == (caps.per_name, caps.per_namespace) == (asked.caps.per_name, asked.caps.per_namespace)
        spec = {name: WriteOptions.__dataclass_fields__[name].default for name in ("scope", "writer")}
        assert {name: getattr(prepare, name) for name in spec} == spec
        assert prepare.scope == given.scope == asked.scope.value
        assert prepare.two_phase_commit == given.two_phase_commit == asked.two_phase_commit.value
        assert isinstance(prepare, PrepareLoadOperator) and prepare._conn_id == "spark_default"
    assert (load.decide.min_records, load.decide.max_records) == (hand.decide.min_records, hand.decide.max_records)


def test_arguments_win_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, **SET)
    given: dict[str, Any] = {
        "namespace": "mine",
        "kafka_conn_id": "my_kafka",
        "ledger_conn_id": "my_ledger",
        "manifest_dir": "/mine",
        "hold_time": timedelta(minutes=5),
        "margin": timedelta(seconds=5),
        "quiet_period": timedelta(0),
        "two_phase_commit": "auto",
        "transaction_naming": "incrementing",
        "deferrable": True,
    }
    found = seen(group(**given))
    assert {k: found[k] for k in given} == given


def test_without_it_the_defaults_are_those_of_the_documentation() -> None:
    found = seen(group())
    assert (found["namespace"], found["ledger_conn_id"], found["manifest_dir"]) == ("airflow", None, None)
    assert (found["hold_time"], found["margin"]) == (timedelta(minutes=15), timedelta(minutes=1))
    assert (found["writer_deadline"], found["quiet_period"]) == (timedelta(days=1), timedelta(seconds=10))
    assert (found["paused_after"], found["deferrable"]) == (timedelta(minutes=15), True)
    assert (found["abandoned_after"], found["sweep_timeout"]) == (timedelta(days=1), timedelta(minutes=10))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("hold_time", "15m"),
        ("margin", "0"),
        ("quiet_period", "-1"),
        ("writer_deadline", "1e400"),
        ("writer_deadline", "nan"),
        ("two_phase_commit", "require"),
        ("transaction_naming", "pool"),
        ("deferrable", "maybe"),
        ("manifest_dir", "manifests"),
        ("namespace", "a\x00b"),
    ],
)
def test_a_value_that_is_none_is_refused_by_section_key_and_value(
    monkeypatch: pytest.MonkeyPatch, key: str, text: str
) -> None:
    if "\x00" in text:  # not from an environment variable, from airflow.cfg
        monkeypatch.setattr(conf, "get", lambda *_, **__: text)
    else:
        configure(monkeypatch, **{key: text})
    with pytest.raises(ConfigurationError) as caught:
        setting(key)
    said = str(caught.value)
    assert f"[kafka_eos] {key} = {text!r}" in said
    assert f"AIRFLOW__KAFKA_EOS__{key.upper()}" in said and OPTIONS[key].example in said


def test_a_margin_of_the_configuration_must_fit_the_hold_time(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, margin="1000")
    with pytest.raises(ConfigurationError, match="margin=0:16:40 does not fit hold_time=0:15:00"):
        group()


def test_airflows_own_switch_is_respected_where_somebody_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default is False, and Airflow writes that into airflow.cfg by itself: that alone says nothing."""
    assert deferrable() is True
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "False")
    assert deferrable() is False and deferrable(True) is True
    configure(monkeypatch, deferrable="True")
    assert deferrable() is True


def test_empty_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, ledger_conn_id=" ", namespace="")
    assert optional("ledger_conn_id") is None
    assert setting("namespace") == "airflow"
