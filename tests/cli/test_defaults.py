"""What no argument says, section ``[kafka_eos]`` says: for every command, as for the loads."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos import config
from airflow_kafka_eos.cli import parser
from airflow_kafka_eos.cli.ledger import url_of
from airflow_kafka_eos.cli.target import settings_of
from airflow_kafka_eos.load import DEFAULT_NAMESPACE
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.cli.conftest import Command
from tests.cli.test_docs import EVERY
from tests.cli.test_reading import words

#: options -> what a section says, what an argument of that name is then; None: no command has it
CHANGED: dict[str, tuple[str, dict[str, Any]] | None] = {
    "namespace": ("payments", {"namespace": "payments"}),
    "kafka_conn_id": ("prod", {}),  # below: it is looked up
    "ledger_conn_id": ("the_ledger", {}),
    "hold_time": ("1234", {"hold_time": 1234.0}),
    "quiet_period": ("33.5", {"quiet": 33_500}),
    "abandoned_after": ("7200", {"abandoned_after": 7_200_000}),
    "sweep_timeout": ("77", {}),  # of cleanup only: other commands have a deadline of their own
    "two_phase_commit": ("required", {"two_phase_commit": "required"}),
    "prune_after": ("864000", {"older_than": 864_000_000}),
    # of what only loads do
    "manifest_dir": None,
    "margin": None,
    "paused_after": None,
    "writer_deadline": None,
    "transaction_naming": None,
    "deferrable": None,
    # of how evidence is read
    "transaction_index": None,
}
AT = ("--bootstrap-server", "h:1")
#: in which it narrows what is shown, and says nothing by default
FILTERS = {("loads list", "namespace"), ("cursors list", "namespace"), ("ledger prune", "namespace")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": "prod.example:9093"}}
    monkeypatch.setenv("AIRFLOW_CONN_PROD", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_THE_LEDGER", json.dumps({"conn_type": "sqlite", "host": f"{tmp_path}/theirs.db"}))
    return tmp_path


def changed(home: Path) -> None:
    lines = [f"{key} = {told[0]}" for key, told in CHANGED.items() if told is not None]
    (home / "airflow.cfg").write_text("\n".join(["[kafka_eos]", *lines]))


def parsed(name: str) -> argparse.Namespace:
    return parser().parse_args([*name.split(), *words(EVERY[name])])


def test_every_option_of_the_section_is_thought_of() -> None:
    assert CHANGED.keys() == config.OPTIONS.keys()


@pytest.mark.parametrize("name", EVERY)
def test_a_changed_section_changes_the_defaults_of_every_command(name: str, home: Path) -> None:
    changed(home)
    arguments = vars(parsed(name))
    expected = {dest: value for told in CHANGED.values() if told is not None for dest, value in told[1].items()}
    for dest in expected.keys() & arguments.keys():
        if (name, dest) not in FILTERS:
            assert arguments[dest] == expected[dest], dest
    if "kafka_conn_id" in arguments:
        assert settings_of(argparse.Namespace(**arguments)).bootstrap_servers == "prod.example:9093"
    if "conn_id" in arguments:
        assert url_of(argparse.Namespace(**arguments)) == f"sqlite:///{home}/theirs.db"


def test_the_defaults_of_an_unchanged_section_are_those_of_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka", "extra": {"bootstrap.servers": "d:1"}}')
    doctor, cleanup = parsed("doctor"), parsed("cleanup")
    assert (doctor.namespace, doctor.two_phase_commit) == (DEFAULT_NAMESPACE, config.setting("two_phase_commit"))
    assert timedelta(seconds=doctor.hold_time) == config.setting("hold_time")
    assert timedelta(milliseconds=cleanup.quiet) == config.setting("quiet_period")
    assert settings_of(doctor).bootstrap_servers == "d:1"
    assert parsed("ledger prune").older_than == 90 * 86_400_000


def test_arguments_win_over_the_section(home: Path) -> None:
    changed(home)
    given = parser().parse_args(
        ["doctor", "--hold-time", "15m", "--two-phase-commit", "off", "--namespace", "mine", *AT]
    )
    assert (given.hold_time, given.two_phase_commit, given.namespace) == (900.0, "off", "mine")
    assert settings_of(given).bootstrap_servers == "h:1"


def test_doctor_without_arguments_looks_at_the_sections_cluster(home: Path, command: Command) -> None:
    (home / "airflow.cfg").write_text("[kafka_eos]\nkafka_conn_id = away\n")
    refused = command("doctor")
    assert refused.code == 2 and "'away': Airflow has no such connection here" in refused.err


def test_a_wrong_option_is_named_and_ends_the_command(home: Path, command: Command) -> None:
    (home / "airflow.cfg").write_text("[kafka_eos]\nhold_time = nan\n")
    refused = command("doctor", *AT)
    assert refused.code == 2 and "[kafka_eos] hold_time = 'nan'" in refused.err
