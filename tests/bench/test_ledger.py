"""The page about large ledgers is made on a real broker and real ledgers; here of small ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from bench import ledger

pytestmark = [pytest.mark.broker, pytest.mark.airflow]


def test_every_step_is_measured(kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", "replaced")
    for module, name in (("dags", "load_tasks"), ("dags", "begun_loads"), ("reads", "_url")):
        of = f"airflow_kafka_eos.plugin.{module}.{name}"
        monkeypatch.setattr(of, None)  # so that it is put back
    monkeypatch.setattr(ledger, "_ROUNDS", 1)
    with ledger.databases(tmp_path, postgresql=False) as made:
        page = ledger.report(kafka, made, [40, 60], 20)
    for step in ("list", "page, all loads", "begin", "decide", "sweep", "maintenance: find, measure", "SQLite, 60"):
        assert f"| {step} " in page
    assert "begin to COMMITTED, times the writing" in page and "20 Spark tasks" in page
