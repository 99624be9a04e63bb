"""What a process of a Spark driver finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.streams.connections import driver_identity, ledger_url


def test_a_driver_is_one_in_all_of_its_processes_and_no_other() -> None:
    first = driver_identity({"SPARK_LOCAL_DIRS": "/tmp/blockmgr-0f3a-1,/data/blockmgr-77-2"})
    assert driver_identity({"SPARK_LOCAL_DIRS": "/tmp/blockmgr-0f3a-1", "HOME": "/"}) == first
    assert driver_identity({"SPARK_LOCAL_DIRS": "/tmp/blockmgr-0f3a-2"}) != first
    with pytest.raises(ConfigurationError, match="which driver it is of"):
        driver_identity({"SPARK_LOCAL_DIRS": "/tmp/local"})


def test_the_ledger_is_named_by_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("sqlite:////ledger.db\n")
    (tmp_path / "url").chmod(0o600)
    assert ledger_url({"AIRFLOW_KAFKA_EOS_LEDGER_FILE": str(tmp_path / "url")}) == "sqlite:////ledger.db"
    assert ledger_url({"AIRFLOW_KAFKA_EOS_LEDGER": "sqlite://"}) == "sqlite://"
    with pytest.raises(ConfigurationError, match="there is no ledger"):
        ledger_url({})
