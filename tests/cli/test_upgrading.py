"""The commands that docs/howto-on-call.md prints for a new version, as printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_kafka_eos.ledger import Ledger, default_url, migrate
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.cli.conftest import Command
from tests.ledger.ledger_support import LOAD, next_version

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto-on-call.md").read_text(encoding="utf-8")
PRINTED = [
    line.strip() for line in PAGE.splitlines() if line.strip().startswith("airflow-kafka-eos ledger ")
    and "prune" not in line
]  # fmt: skip


def test_a_ledger_of_before_is_refused_until_it_is_upgraded_and_then_by_the_version_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    upgrade, check = (line.split()[1:] for line in PRINTED)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    with Ledger.open(url, upgrade=True) as ledger:
        ledger.begin(LOAD, owner="x")
    with monkeypatch.context() as newer:
        next_version(tmp_path, newer)
        refused = command(*check)
        assert refused.code == 2 and "is at revision 0012, not 0013" in refused.err
        assert command(*upgrade).out == f"ledger {url}: 0012 -> 0013\n"
        assert command(*upgrade).out == f"ledger {url}: 0013 -> 0013\n"  # it may be run twice
        assert command(*check).out == f"ledger {url}: revision 0013, up to date; its id is {ledger.ledger_id}\n"
    for line in (check, upgrade):
        refused = command(*line)
        assert refused.code == 2 and "is at revision 0013, which this version" in refused.err
    assert migrate.current(url) == "0013"


def test_a_new_one_is_said_to_know_no_load_before_anybody_loads_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Whoever lost a ledger, or named another one, is told to run this command: nothing else would find it out."""
    monkeypatch.setenv(LEDGER_VARIABLE, f"sqlite:///{tmp_path / 'ledger.db'}")
    upgrade, _ = (line.split()[1:] for line in PRINTED)
    made, again = command(*upgrade), command(*upgrade)
    assert (made.code, "If loads have run already, let none run here" in made.err) == (0, True)
    assert (again.code, again.err) == (0, "")


def test_the_embedded_one_is_upgraded_by_the_first_that_opens_it_as_tasks_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    url = default_url()
    Ledger.open(url).close()
    next_version(tmp_path, monkeypatch)
    _, check = (line.split()[1:] for line in PRINTED)
    assert "is at revision 0012, not 0013" in command(*check).err  # a command does not
    Ledger.open(url).close()
    assert "revision 0013, up to date" in command(*check).out
