"""Airflow's options as commands read them: as Airflow does, held against its own reading."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from airflow.sdk import configuration

from airflow_kafka_eos import config
from airflow_kafka_eos.cli.airflow_options import AskAirflow, airflow_option, without_airflow

CFG = """\
[core]
executor = CeleryExecutor
[database]
sql_alchemy_conn = postgresql+psycopg2://u:p%%40ss@h/db
[kafka_eos]
namespace = of_file
Namespace = another
hold_time = 1800
manifest_dir = $SHARED/m
ledger_conn_id =
"""
ASKED = [
    ("core", "executor"),
    ("database", "sql_alchemy_conn"),
    *(("kafka_eos", key) for key in ("namespace", "hold_time", "manifest_dir", "ledger_conn_id", "margin")),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("SHARED", "~/shared")
    return tmp_path


def by_airflow(section: str, key: str) -> str | None:
    """What Airflow itself reads by now."""
    found: str | None = configuration.initialize_config().get(section, key, fallback=None)
    return found


def default(section: str, key: str) -> str | None:
    if section == config.SECTION:
        return config.OPTIONS[key].default
    found: str | None = configuration.initialize_config().get_default_value(section, key)
    return found


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"AIRFLOW__KAFKA_EOS__NAMESPACE": "of_env", "AIRFLOW__CORE__EXECUTOR": ""},
        {"AIRFLOW__KAFKA_EOS__MANIFEST_DIR": "${SHARED}/$SHARED", "AIRFLOW__KAFKA_EOS__HOLD_TIME": "100%"},
        # no option of ours is a secret: Airflow runs no command for it
        {"AIRFLOW__KAFKA_EOS__LEDGER_CONN_ID_CMD": "echo it"},
    ],
)
@pytest.mark.parametrize("file", [None, CFG, CFG.replace("%%", "%")])
def test_what_is_read_is_what_airflow_reads(
    home: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], file: str | None
) -> None:
    if file is not None:
        (home / "airflow.cfg").write_text(file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked, told = 0, {}
    for section, key in ASKED:
        try:
            found = without_airflow(section, key)
            told[section, key] = default(section, key) if found is None else found
        except AskAirflow:
            asked += 1
    assert told == {(section, key): by_airflow(section, key) for section, key in told}
    # a lone % is not for us to read
    assert asked <= ("%" in json.dumps(environment)) + ("p%40" in (file or "")) + ("CMD" in str(environment))


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ({"AIRFLOW__CORE__FERNET_KEY_CMD": "echo it"}, ""),
        ({"AIRFLOW__CORE__FERNET_KEY_SECRET": "path"}, ""),
        ({}, "[core]\nfernet_key_cmd = echo it\n"),
        ({"AIRFLOW__CORE__UNIT_TEST_MODE": "True"}, ""),
        ({}, "[core]\nairflow_home = /elsewhere\n"),
        ({}, "[core]\nx = 1\nx = 2\n"),
        ({}, "no section\n"),
    ],
)
def test_what_only_airflow_can_tell_it_is_asked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], file: str
) -> None:
    (home / "airflow.cfg").write_text(file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(AskAirflow):
        without_airflow("core", "fernet_key")


def test_the_file_may_lie_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "other.cfg").write_text("[kafka_eos]\nnamespace = there\n")
    monkeypatch.setenv("AIRFLOW_CONFIG", "$AIRFLOW_HOME/other.cfg")
    assert airflow_option("kafka_eos", "namespace") == "there" == by_airflow("kafka_eos", "namespace")


def test_the_executor_that_nobody_has_set_is_airflows(home: Path) -> None:
    assert airflow_option("core", "executor", "LocalExecutor") == by_airflow("core", "executor")
