"""The job of the campaign's real runs writes what the campaign's checkers read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.job import run_job
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.faults.facts import Value
from tests.faults.visible import LOAD

pytestmark = pytest.mark.spark

JOB = Path(__file__).parents[1] / "faults" / "dags" / "jobs" / "numbered.py"
ATTEMPT = 3


def test_each_record_says_who_wrote_it(spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attempt = AttemptRef(LoadIdentity("test", "real", "a"), "0123456789", ATTEMPT)
    arguments = {"key": "a", "records": 50, "key_count": 7, "tasks": 2}
    spec = ApplicationSpec(WriteOptions(attempt, "/m", ("orders",), 1, 1), job=str(JOB), job_args=arguments)
    monkeypatch.setattr(sys, "argv", ["application", "--spec", spec.to_json()])
    monkeypatch.setattr(sys, "path", [*sys.path])  # the job's folder is put there
    rows = run_job(spec, spark, ManifestStore(str(tmp_path))).collect()
    values = [Value.decode(row["value"].encode()) for row in rows]
    assert {(v.party, v.writer, v.unit, v.at_ms) for v in values} == {(LOAD, "a", ATTEMPT, 0)}
    assert sorted(v.number for v in values) == list(range(50))
    assert [v.key for v in values] == [row["key"] for row in rows]
    assert all(row["value"].encode().startswith(v.encode()) for row, v in zip(rows, values, strict=True))
