"""Airflow tells a task to end when it has prepared, and not decided: by SIGTERM, whose handler calls ``on_kill``.

Nothing is raised in what runs, and SIGKILL comes five seconds later: without a look it would go on, and decide.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_kafka_eos import Checks, ExactlyOnceLoad
from airflow_kafka_eos.errors import StoppedError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.airflow.steps import CONTEXT, LOAD, in_try, operator, session
from tests.airflow.test_arrow_steps import JOB, VALUES
from tests.reading import committed_values


@contextmanager
def as_task_runner(task: Any) -> Iterator[None]:
    """Airflow's own handler, around what a task's process runs in its main thread."""
    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def told(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def and_told(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> None:
    """The signal comes when that is done."""
    real = getattr(kind, method)

    def then(self: Any, *given: Any, **more: Any) -> Any:
        found = real(self, *given, **more)
        told()
        return found

    monkeypatch.setattr(kind, method, then)


@pytest.fixture
def group(home: Path, topic: Callable[..., str]) -> Callable[..., ExactlyOnceLoad]:
    """A load that is begun, and decides at once."""
    (home / "rows.py").write_text(JOB)

    def made(key: str, **arguments: Any) -> ExactlyOnceLoad:
        with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)):
            load = ExactlyOnceLoad(
                "load", load_name=LOAD, load_key=key, topics=[topic(1)], job=str(home / "rows.py"), engine="arrow",
                **arguments,
            )  # fmt: skip
        load.begin.execute(CONTEXT)
        return load

    return made


def attempt(key: str) -> AttemptRow:
    with session() as opened:
        found: AttemptRow = opened.ledger.attempts(LoadIdentity("airflow", LOAD, key))[-1]
        return found


def stopped(task: Any) -> None:
    with as_task_runner(task), pytest.raises(StoppedError, match="told to stop before the load was decided"):
        task.execute(in_try(1))


def test_prepare_that_is_told_behind_its_manifest_records_nothing(
    group: Callable[..., ExactlyOnceLoad], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = group("written")
    with monkeypatch.context() as patch:
        and_told(patch, ManifestStore, "read")
        stopped(load.prepare)
    row = attempt("written")
    assert row.is_undecided and not row.is_prepared


def test_what_is_recorded_by_then_is_not_decided_until_it_is_tried_again(
    kafka: LocalKafka, group: Callable[..., ExactlyOnceLoad], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = group("recorded")
    with monkeypatch.context() as patch:
        and_told(patch, Ledger, "mark_prepared")
        stopped(load.prepare)
    row = attempt("recorded")
    assert row.is_undecided and row.is_prepared
    load.decide.check = told
    stopped(load.decide)
    assert attempt("recorded") == row, "the task decide looks, too"
    load.decide.check, load.decide._is_told_to_stop = None, False
    assert load.decide.execute(CONTEXT)["verdict"] == "commit"
    assert sorted(committed_values(kafka.bootstrap_servers, load.prepare.topics[0], 1)) == VALUES


def test_prepare_that_is_told_while_the_authors_check_runs_decides_nothing(
    group: Callable[..., ExactlyOnceLoad],
) -> None:
    """It is not left to the task decide either: prepare has not succeeded."""
    stopped(group("checked", checks=Checks(check=told)).prepare)
    assert attempt("checked").is_undecided


def test_what_is_decided_by_then_stays_so(
    kafka: LocalKafka, group: Callable[..., ExactlyOnceLoad], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = group("decided")
    and_told(monkeypatch, Ledger, "decide_commit")
    with as_task_runner(load.prepare):
        assert load.prepare.execute(in_try(1))["verdict"] == "commit"
    assert attempt("decided").verdict is Verdict.COMMIT
    assert sorted(committed_values(kafka.bootstrap_servers, load.prepare.topics[0], 1)) == VALUES


@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_before_anything_runs_it_is_noted_too(home: Path, engine: str) -> None:
    """A spark-submit that is over has no process that Airflow's own could end."""
    prepare = operator("prepare", "early", engine=engine, job="j.py")
    prepare._check_stop()
    if engine == "spark":
        prepare._hook = prepare._get_hook()
    prepare.on_kill()
    with pytest.raises(StoppedError):
        prepare._check_stop()
