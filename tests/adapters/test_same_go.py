"""What a retry must ask for again to go on with the application of the try before: each argument that says what is
written, or how. No Spark, no broker.
"""

from __future__ import annotations

from datetime import timedelta
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_kafka_eos import Cursor
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.operators.preparing import PreparingOperator
from airflow_kafka_eos.operators.reattaching import this_go
from airflow_kafka_eos.spark.dag_file import JOB, job_args

#: One edit of each argument of a load, and of a submission.
EDITED: dict[str, Any] = {
    "job": "other.py", "job_args": {"day": 2}, "topics": ["other"], "hold_time": timedelta(hours=7),
    "manifest_dir": "/elsewhere", "scope": "load", "two_phase_commit": "off", "writer": "confluent",
    "transaction_naming": "pooling", "value_format": {"format": "json", "record_name": "x.Y"},
    "registry_conn_id": "registry", "kafka_conn_id": "other", "ledger_conn_id": "other", "conn_id": "other",
    "conf": {"spark.x": "1"}, "env_vars": {"X": "1"}, "files": "f", "py_files": "f", "archives": "f",
    "driver_class_path": "f", "jars": "f", "java_class": "C", "packages": "p", "exclude_packages": "p",
    "repositories": "r", "total_executor_cores": 2, "executor_cores": 2, "executor_memory": "2g", "driver_memory": "2g",
    "keytab": "k", "principal": "p", "proxy_user": "p", "num_executors": 2, "spark_binary": "spark3-submit",
    "properties_file": "f", "yarn_queue": "q", "deploy_mode": "client", "use_krb5ccache": True,
}  # fmt: skip
#: What neither says what is written nor how.
SAME: dict[str, Any] = {
    "writer_deadline": timedelta(hours=1), "max_transactional_ids": 5, "max_transactional_ids_of_namespace": 5,
    "decide_at_once": False, "name": "other", "status_poll_interval": 5, "verbose": True, "yarn_rm_auth": object(),
    "openlineage_inject_parent_job_info": True, "openlineage_inject_transport_info": True,
    "wait_in_triggerer": True, "max_records": 5,
}  # fmt: skip
#: ``sql`` and ``cursor`` have tests of their own; with the rest there is no application that a retry could find, or
#: prepare refuses it.
OTHERS = {
    "self", "kwargs", "sql", "cursor", "application", "application_args", "durable", "reconnect_on_retry",
    "post_submit_commands", "track_driver_via_k8s_api", "yarn_track_via_rm_api",
}  # fmt: skip


def go(tmp_path: Path, **changes: Any) -> str:
    given: dict[str, Any] = {
        "task_id": "prepare", "load_name": "orders", "load_key": "k", "topics": ["a", "b"], "job": "rows.py",
        "job_args": {"day": 1}, "manifest_dir": str(tmp_path),
    }  # fmt: skip
    run = SimpleNamespace(clear_number=0, start_date="2026-01-01")
    found = this_go({"dag_run": run, "ti": SimpleNamespace(max_tries=2)}, PrepareLoadOperator(**given | changes))
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_kafka_eos.operators.reattaching.AIRFLOW", "3.3.0")


@pytest.mark.parametrize("name", EDITED)
def test_an_argument_that_was_edited_is_another_go(tmp_path: Path, name: str) -> None:
    assert go(tmp_path, **{name: EDITED[name]}) != go(tmp_path)


@pytest.mark.parametrize("name", SAME)
def test_what_says_nothing_of_what_is_written_leaves_it_the_same_go(tmp_path: Path, name: str) -> None:
    assert go(tmp_path, **{name: SAME[name]}) == go(tmp_path)


def test_no_argument_is_forgotten() -> None:
    """Of the Spark provider that is installed, too."""
    known = {name for kind in (PreparingOperator, SparkSubmitOperator) for name in signature(kind.__init__).parameters}
    assert known - {*EDITED, *SAME} - OTHERS == set()


def test_another_query_and_another_named_range_are_another_go(tmp_path: Path) -> None:
    queries = [go(tmp_path, job=None, sql=f"SELECT {n}", job_args=None) for n in range(2)]
    ranges = [go(tmp_path, cursor=Cursor(since=0, until=n)) for n in (1, 2)]
    assert len({*queries, *ranges}) == 4
    begins = [go(tmp_path, cursor=Cursor(first_since=n)) for n in range(2)]
    assert begins[0] == begins[1], "every attempt of a key reads the range that the ledger has for it"


def test_a_dag_file_that_another_host_has_elsewhere_is_the_same_go(tmp_path: Path) -> None:
    def of(folder: str, day: int) -> str:
        return go(tmp_path, job=JOB, job_args=job_args(f"{folder}/d.py", "d", "g", {"day": day}, [folder]))

    assert of("/bundles/1", 1) == of("/bundles/2", 1) != of("/bundles/2", 2)
