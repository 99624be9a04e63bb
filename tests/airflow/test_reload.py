"""Step by step, what begin does with a load that is committed already, on a real ledger and broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.airflow.steps import CONTEXT, LOAD, a_prepared_load, operator, run, session, state
from tests.reading import committed_values

OTHER_RUN: Any = CONTEXT | {
    "ti": SimpleNamespace(dag_id="dag", run_id="run b", map_index=-1, task_id="load.step")
}


def begin(key: str, mode: str, context: Any = CONTEXT) -> Any:
    return operator("begin", key, on_committed=mode).execute(context)


def committed(home: Path, kafka: LocalKafka, key: str, topic: str, records: int = 1) -> None:
    a_prepared_load(home, kafka, key, topic, records)
    run("decide", key)
    run("commit", key)


def known(key: str) -> bool:
    with session() as opened:
        return opened.ledger.load(LoadIdentity("airflow", LOAD, key)) is not None


@pytest.mark.spark
def test_a_reload_is_written_once_more_and_no_retry_writes_it_again(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic()
    committed(home, kafka, "again", name, 2)
    assert begin("again", "skip")["load_key"] == "again"
    for _ in range(2):  # the second one is a retry: it goes on with the same generation
        assert begin("again", "reload")["load_key"] == "again~reload-2"
    # two runs that ask while none is committed share it
    assert begin("again", "reload", OTHER_RUN)["load_key"] == "again~reload-2"
    for step, arguments in (("prepare", {"topics": [name], "sql": "SELECT 'w' value"}), ("decide", {}), ("commit", {})):
        run(step, "again~reload-2", **arguments)
    assert state("again~reload-2") is LoadState.COMMITTED
    assert committed_values(kafka.bootstrap_servers, name, 1) == ["v", "v", "w"]
    run("cleanup", "again~reload-2")
    assert begin("again", "skip")["verdict"] == "commit"  # who does not ask by name gets nothing more
    assert begin("again", "reload")["load_key"] == "again~reload-3"


def test_what_was_cleared_in_part_goes_on_with_the_generation_that_it_has(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_kafka_eos.operators.begin import BeginLoadOperator

    committed(home, kafka, "part", topic())
    monkeypatch.setattr(BeginLoadOperator, "_whole_group_runs", lambda *_: False)
    found = begin("part", "reload")
    assert (found["load_key"], found["verdict"]) == ("part", "commit")
    assert not known("part~reload-2")


def test_fail_refuses_what_another_run_has_loaded_and_not_what_is_its_own(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    committed(home, kafka, "fail", topic())
    with pytest.raises(AirflowFailException, match="committed already, by dag/run#group=load"):
        begin("fail", "fail", OTHER_RUN)
    assert begin("fail", "fail")["verdict"] == "commit"
    assert begin("fail", "skip", OTHER_RUN)["verdict"] == "commit"


@pytest.mark.parametrize("end", [LoadState.IN_DOUBT, LoadState.GIVEN_UP])
def test_a_reload_does_not_run_round_a_decision_that_waits_for_a_person(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], end: LoadState
) -> None:
    key = end.value
    ref, _ = a_prepared_load(home, kafka, key, topic(), 0)
    with session() as opened:
        manifest = ManifestStore(str(home / "kafka_eos_manifests")).read(ref)
        opened.ledger.decide_commit(manifest, decided_by="test")
        opened.ledger.record_in_doubt(ref.load, ref.attempt, "the test says so")
        if end is LoadState.GIVEN_UP:
            opened.ledger.record_given_up(ref.load, by="a person", reason="test")
    # a load that was given up cannot be recovered: its key stays as it is
    remedy = "loads recover" if end is LoadState.IN_DOUBT else "load the same data under another load_key"
    with pytest.raises(AirflowFailException, match=f"{key}.*{remedy}"):
        begin(key, "reload", OTHER_RUN)
    if end is LoadState.IN_DOUBT:  # its own group: clearing prepare, the remedy, brings begin along
        assert (begin(key, "reload")["load_key"], state(key)) == (key, end)
    else:
        with pytest.raises(AirflowFailException, match=key):
            begin(key, "reload")
    assert not known(f"{key}~reload-2")


def test_a_load_on_its_way_is_finished_first(home: Path, kafka: LocalKafka, topic: Callable[..., str]) -> None:
    """COMMITTING: behind the point of no return, and not there yet."""
    ref, _ = a_prepared_load(home, kafka, "committing", topic(), 0)
    with session() as opened:
        opened.ledger.decide_commit(
            ManifestStore(str(home / "kafka_eos_manifests")).read(ref), decided_by="test"
        )
    assert begin("committing", "reload", OTHER_RUN)["load_key"] == "committing"
    run("commit", "committing")
    assert begin("committing", "reload", OTHER_RUN)["load_key"] == "committing~reload-2"


@pytest.mark.parametrize("mode", ["skip", "fail", "reload"])
def test_an_authors_key_that_looks_like_a_reload_opens_nothing(home: Path, mode: str) -> None:
    with pytest.raises(AirflowFailException, match="ends like the key of a reload"):
        begin("mine~reload-2", mode)
    assert not known("mine~reload-2")


def test_a_mode_that_a_template_made_is_checked_too(home: Path) -> None:
    begun = operator("begin", "typo", on_committed="{{ params.mode }}")
    begun.render_template_fields({"params": {"mode": "re-load"}})
    with pytest.raises(AirflowFailException, match="on_committed is 're-load'"):
        begun.execute(CONTEXT)
    assert not known("typo")
