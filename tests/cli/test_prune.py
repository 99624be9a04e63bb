"""``ledger prune``: what it says before and behind, and what of it other commands say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.ledger import Ledger, migrate
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.cli.conftest import Command
from tests.ledger.ledger_support import LOAD, OTHER, prepare, sql
from tests.ledger.test_ledger_prune import committed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto-on-call.md").read_text(encoding="utf-8")
#: the lines of the page that prune
PRINTED = [line.strip() for line in PAGE.splitlines() if line.startswith("    airflow-kafka-eos ledger prune")]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """With two loads that were committed 100 days ago, one of another namespace, and a younger one."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    with Ledger.open(url) as opened:
        for load in (LOAD, OTHER, LoadIdentity("other", "l", "k")):
            committed(opened, load)
        moment = (datetime.now(UTC) - timedelta(days=100)).isoformat(timespec="microseconds")
        sql(url, "UPDATE kafka_eos_attempts SET closed_at = :moment", moment=moment)
        committed(opened, LoadIdentity("team", "load_orders", "young"))
        yield opened


def test_it_says_how_much_asks_and_says_what_it_did(ledger: Ledger, command: Command) -> None:
    counted = command("ledger", "prune", "--dry-run")
    assert (counted.code, counted.out) == (0, "6 transactions of 3 attempts would be pruned\n")
    refused = command("ledger", "prune")
    assert refused.code == 2 and "Add --yes" in refused.err and "closed more than 90d ago" in refused.err
    assert len(ledger.transactions(LOAD, 1)) == 2
    done = command("ledger", "prune", "--yes", "--namespace", "team", "--output", "json")
    assert json.loads(done.out) == {"attempts": 2, "transactions": 4, "dry_run": False}
    assert "2 of 2 attempts, 4 transactions" in done.err
    assert command("ledger", "prune", "--yes").out == "2 transactions of 1 attempts pruned\n"
    nothing = command("ledger", "prune")
    assert (nothing.code, nothing.out) == (0, "nothing to prune\n")
    young = command("ledger", "prune", "--older-than", "1d", "--dry-run")
    assert young.out == "nothing to prune\n"


def test_as_the_page_prints_it(ledger: Ledger, command: Command) -> None:
    counts, prunes = (line.split()[1:] for line in PRINTED)
    assert command(*counts).out == "6 transactions of 3 attempts would be pruned\n"
    # a person is asked
    assert command(*prunes, "--yes").out == "6 transactions of 3 attempts pruned\n"


def test_less_than_a_day_is_refused(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ledger", "prune", "--older-than", "23h", "--yes"])
    assert ended.value.code == 2 and "less than a day" in capsys.readouterr().err


def test_a_load_that_was_pruned_says_so(ledger: Ledger, command: Command) -> None:
    show = ("loads", "show", LOAD.name, LOAD.key, "--namespace", "team")
    assert "pruned:" not in command(*show).out
    command("ledger", "prune", "--yes")
    assert "the transactions of attempts 1 were pruned: the ledger has forgotten them" in command(*show).out
    shown = json.loads(command(*show, "--output", "json").out)
    assert shown["transactions"] == [] and shown["attempts"][0]["pruned_at"] is not None
    assert (shown["load"]["state"], shown["load"]["records"]) == ("COMMITTED", 20)
    prepare(ledger, LoadIdentity("team", "load_orders", "next"))
    assert "pruned:" not in command("loads", "show", LOAD.name, "next", "--namespace", "team").out
