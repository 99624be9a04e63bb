"""``ledger compare``, ``loads reinstate`` and ``loads set-committed``: what they say, and how they end."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import compare, main
from airflow_kafka_eos.errors import AccessError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.operators import submitting
from airflow_kafka_eos.protocol.repair import restored
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.cli.conftest import Command
from tests.ledger.ledger_support import prepare, sql
from tests.protocol.world import World, foreign_transaction

pytestmark = pytest.mark.broker


@pytest.fixture
def call(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command on this broker and an empty ledger; exit code, stdout, stderr."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--bootstrap-server", kafka.bootstrap_servers])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_what_was_not_looked_at_is_said(call: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, out, err = call("ledger", "compare")
    assert (code, out) == (0, "the ledger has decided all commits that brokers show, and nothing is open\n")
    assert "NOT LOOKED AT" not in err and "namespace airflow" in err
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger.open(url) as ledger:
        prepare(ledger, LoadIdentity("payments", "orders", "k"))
    sql(url, "UPDATE kafka_eos_attempts SET cluster_id = 'another'")
    code, out, err = call("ledger", "compare", "--output", "json")
    assert (code, json.loads(out)) == (0, [])
    assert "NOT LOOKED AT: other namespaces of this ledger: payments (--namespace)" in err
    assert "NOT LOOKED AT: other clusters of this ledger: another (--kafka-conn-id, --bootstrap-server" in err
    assert "AIRFLOW_KAFKA_EOS_KAFKA" in err


def test_another_ledger_that_has_only_something_open_is_named(
    world: World, command: Command, at: tuple[str, str]
) -> None:
    """It may be this one's, of before it was restored: nothing was committed under that id yet."""
    other = f"{uuid.uuid4().int % 10**10:010d}"
    producer = foreign_transaction(world, str(TransactionalId(world.load, other, 1, 0, 0)))
    answer = command("ledger", "compare", *at)
    assert f"1 ids of ledger {other} have a transaction open. Had this ledger that id" in answer.err
    assert f"--ledger-id {other}" in answer.err
    there = command("ledger", "compare", "--ledger-id", other, "--output", "json", *at)
    ((row,), code) = json.loads(there.out), there.code
    assert (code, row["key"], row["committed"], len(row["open"])) == (1, world.load.key, [], 1)
    producer.commit_transaction(30)
    assert f"1 ids of ledger {other} show a commit" in command("ledger", "compare", *at).err


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (restored.Comparison((), {"0123456789": 3}, None, False), 0, "3 ids of ledger 0123456789 show a commit"),
        (restored.Comparison((), {}, None, True), 3, "a transaction coordinator is moving or away"),
        (restored.Comparison((), {}, AccessError("no DESCRIBE", remedy="Grant it"), False), 2, "no DESCRIBE"),
        (restored.Comparison((restored.Forgotten("a b", None, None, 7, None, ("x",), ()),), {}, None, False), 1, ""),
    ],
)
def test_what_may_be_missing_is_said(
    call: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    found: restored.Comparison,
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr(restored, "compare", lambda session, ledger_id: found)
    ended, out, err = call("ledger", "compare")
    assert (ended, said in err) == (code, True)
    assert ("'a b'" in out) is bool(found.forgotten)


def test_nothing_is_done_without_a_word(call: Callable[..., tuple[int, str, str]]) -> None:
    assert call("loads", "reinstate", "orders", "k")[0] == 2
    assert call("loads", "set-committed", "orders", "k", "--reason", "seen")[0] == 2
    code, out, err = call("loads", "reinstate", "orders", "k", "--yes")
    assert (code, out) == (2, "") and "nothing says that it was decided. Nothing was changed." in err
    code, out, _ = call("loads", "set-committed", "orders", "k", "l m", "--reason", "seen", "--yes", "--output", "json")
    assert (code, [(one["key"], one["state"]) for one in json.loads(out)]) == (
        0,
        [("k", "COMMITTED"), ("l m", "COMMITTED")],
    )
    code, out, err = call("loads", "set-committed", "orders", "n", "x" * 300, "--reason", "seen", "--yes")
    assert code == 2 and "n " in out, "what was done before is shown"


def test_manifests_are_where_the_loads_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    assert compare._manifests("").base == f"{tmp_path}/kafka_eos_manifests"
    # by an Airflow connection: as the tasks find it
    monkeypatch.setattr(submitting, "manifest_store", lambda given: ManifestStore(f"/tasks/{given[5:]}"))
    assert compare._manifests("s3://lake@bucket/folder").base == "/tasks/lake@bucket/folder"
