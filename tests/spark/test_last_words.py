"""Why an application failed, as it leaves it where Airflow looks: without secrets, and of its own attempt only."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.errortext import THIS_PROCESS, leave
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec

REF = AttemptRef(LoadIdentity("tests", "words", "k"), "00000000cc", 1)
ENVIRON = {SETTINGS_VARIABLE: json.dumps({"bootstrap.servers": "b:1", "sasl.password": "hunter2-horse"})}


def spec(folder: Path) -> str:
    return ApplicationSpec(WriteOptions(REF, str(folder), ("t",), 60_000, 1), sql="select 1").to_json()


def test_it_has_no_secret(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    store.claim(REF, f"{THIS_PROCESS}0123")
    assert store.failure(REF) is None
    leave(spec(tmp_path), "ValueError: no login with hunter2-horse at jdbc:x?password=other", ENVIRON)
    assert store.failure(REF) == "ValueError: no login with *** at jdbc:x?password=***"
    leave(spec(tmp_path), "ValueError: a second one", ENVIRON)
    assert store.failure(REF) == "ValueError: no login with *** at jdbc:x?password=***", "the first word stays"


def test_a_driver_that_was_refused_says_nothing_of_who_has_claimed(tmp_path: Path) -> None:
    store = ManifestStore(str(tmp_path))
    leave(spec(tmp_path), "UndecidableError: claimed", ENVIRON)
    store.claim(REF, "another-host process 1, 0123")
    leave(spec(tmp_path), "UndecidableError: claimed", ENVIRON)
    assert store.failure(REF) is None
