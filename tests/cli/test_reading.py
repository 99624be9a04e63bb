"""A host without the loads' configuration: whatever is asked, no ledger is made there, and the answer says so."""

from __future__ import annotations

import argparse
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.cli.conftest import Command
from tests.cli.shell import shell
from tests.cli.test_docs import EVERY
from tests.ledger.ledger_support import LOAD, prepare

#: what needs no ledger
WITHOUT = {
    *("ledger upgrade", "spark-archive", "demo", "broker", "examples list", "examples copy"),
    *("transactions describe-producers", "transactions import-committables"),
}
CLUSTER = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(LEDGER_VARIABLE, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", CLUSTER)
    return tmp_path / "airflow"


def words(command: argparse.ArgumentParser) -> list[str]:
    """What it cannot do without."""
    groups = [group for group in command._mutually_exclusive_groups if group.required]
    found = [word for group in groups for word in (group._group_actions[0].option_strings[0], "1")]
    for action in command._actions:
        if action.required or (not action.option_strings and action.dest in ("transactional_id", "name", "key")):
            found += [*action.option_strings[:1], "1"]
        elif action.dest in ("yes", "timeout"):
            found += [action.option_strings[0], *(["1"] if action.dest == "timeout" else [])]
    return found


@pytest.mark.parametrize("name", [name for name in EVERY if name not in WITHOUT])
def test_no_command_makes_a_ledger(name: str, command: Command, home: Path) -> None:
    answer = command(*name.split(), *words(EVERY[name]))
    assert not home.exists(), list(home.iterdir())
    if name == "doctor":
        assert answer.code == 1 and "ledger-migrations" in answer.out
        return
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert "kafka_eos_ledger.db has not been created yet" in line and "ledger upgrade" in line
    assert line.index("If loads have run already, create none") < line.index("ledger upgrade")
    assert "Another ledger is named by --conn-id" in line


@pytest.mark.parametrize("name", ["loads list", "transactions list", "cleanup"])
def test_no_command_upgrades_one(name: str, command: Command, home: Path) -> None:
    file = home / "kafka_eos_ledger.db"
    Ledger.open(f"sqlite:///{file}", upgrade=True).close()
    with closing(sqlite3.connect(file)) as opened, opened:
        (table,) = [t for (t,) in opened.execute("SELECT name FROM sqlite_master") if t.endswith("_version")]
        opened.execute(f"UPDATE {table} SET version_num = '0005'")
    answer = command(*name.split(), *words(EVERY[name]))
    assert answer.code == 2 and "is at revision 0005" in answer.err
    with closing(sqlite3.connect(file)) as opened:
        assert opened.execute(f"SELECT version_num FROM {table}").fetchall() == [("0005",)]


def test_on_a_host_without_configuration_a_shell_gets_no_empty_answer(tmp_path: Path) -> None:
    for arguments in (("loads", "list"), ("transactions", "list", "--bootstrap-server", "127.0.0.1:1")):
        done = shell(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (2, "") and "has not been created yet" in done.stderr
    for words_of in (("transactions", "list"), ("doctor",)):
        done = shell(tmp_path, *words_of)
        assert (done.returncode, done.stdout) == (2, "")
        assert "'kafka_default': Airflow has no such connection here" in done.stderr
    assert not list(tmp_path.rglob("*")), "nothing was made: no ledger, no airflow.cfg"


def test_lists_of_the_ledger_name_it_on_stderr(command: Command, home: Path) -> None:
    with Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db", upgrade=True) as ledger:
        prepare(ledger)
        where = f"ledger sqlite:///{home}/kafka_eos_ledger.db ({ledger.ledger_id})\n"
    for arguments in (
        ("loads", "list"),
        ("loads", "list", "--output", "json"),
        ("loads", "show", LOAD.name, LOAD.key, "--namespace", LOAD.namespace),
    ):
        assert command(*arguments).err == where
