"""What a process of a Spark driver finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.streams.connections import driver_identity, ledger_url, session


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


@pytest.mark.broker
def test_a_session_is_kept_until_the_ledger_gets_another_id(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", url)
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with Ledger.open(url, upgrade=True) as another:
        with session(settings, "test") as first:
            pass
        with session(settings, "test") as kept:
            assert kept is first
        another.new_id(decided_by="test")
        with pytest.raises(ZeroDivisionError), session(settings, "test") as opened:
            assert opened.ledger.ledger_id == another.ledger_id
            assert another.ledger_id in opened.id_prefix
            raise ZeroDivisionError  # so that it is closed
