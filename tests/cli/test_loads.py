"""``loads`` and ``ledger``: what the ledger knows, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.ledger import Ledger, migrate
from airflow_kafka_eos.ledger.rows import UNFINISHED
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.transaction import Outcome
from tests.ledger.ledger_support import LOAD, OTHER, commit, prepare, ref, sql

Run = Callable[..., str]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    with Ledger.open(url) as opened:
        yield opened


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that must succeed; what it prints."""

    def one(*arguments: str) -> str:
        assert main(arguments) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return one


def test_all_loads_are_listed_with_state_attempt_and_records(ledger: Ledger, run: Run) -> None:
    commit(ledger, LOAD)
    prepare(ledger, OTHER)
    head, _, *rows = run("loads", "list").splitlines()
    assert head.split()[:6] == ["namespace", "name", "key", "state", "attempt", "records"]
    assert [row.split()[:6] for row in rows] == [
        ["team", "load_orders", LOAD.key, "COMMITTING", "1", "20"],
        ["team", "load_orders", OTHER.key, "PREPARED", "1", "20"],
    ]
    assert "scope task, with a timeout, writer test" in rows[0]


def test_a_long_reason_is_cut_in_the_list_alone(ledger: Ledger, run: Run) -> None:
    why = f"it is gone from the log: {'and this is what to do next, ' * 40}the end"
    commit(ledger, LOAD)
    ledger.record_repairing(LOAD, 1, why, newer=True)
    text = run("loads", "list")
    assert "it is gone from the log" in text and "…" in text and "the end" not in text
    assert max(map(len, text.splitlines())) < 300
    (row,) = json.loads(run("loads", "list", "--output", "json"))
    assert row["reason"] == why
    assert why in run("loads", "show", LOAD.name, LOAD.key, "--namespace", LOAD.namespace)


def test_a_list_is_narrowed(ledger: Ledger, run: Run) -> None:
    commit(ledger, LOAD)
    prepare(ledger, OTHER)
    prepare(ledger, LoadIdentity("other", "x", "1"))

    def keys(*arguments: str) -> list[str]:
        return [row["key"] for row in json.loads(run("loads", "list", "--output", "json", *arguments))]

    assert keys() == [LOAD.key, OTHER.key, "1"]
    assert keys("--namespace", "other") == keys("--name", "x") == ["1"]
    assert keys("--state", "PREPARED", "--namespace", "team") == [OTHER.key]
    assert keys("--state", "ABORTED") == []


def test_a_dual_write_that_was_finished_by_hand_is_said_to_be(
    ledger: Ledger, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    of = (LOAD.name, LOAD.key, "--namespace", LOAD.namespace, "--reason", "added row 2")
    prepare(ledger, LOAD)
    assert main(("loads", "set-finished", *of, "--yes")) != 0
    assert "not decided to be committed" in capsys.readouterr().err
    commit(ledger, LOAD)
    sql(f"sqlite:///{tmp_path / 'ledger.db'}", "UPDATE kafka_eos_decisions SET reason = :reason", reason=UNFINISHED)
    assert main(("loads", "set-finished", *of)) == 2, "nobody has said yes"
    assert ledger.attempts(LOAD)[-1].is_unfinished
    assert "added row 2" in run("loads", "set-finished", *of, "--yes")
    row = ledger.attempts(LOAD)[-1]
    assert (row.is_unfinished, row.reason.endswith(": added row 2")) == (False, True)


def decided_ago(tmp_path: Path, age: timedelta) -> None:
    moment = (datetime.now(UTC) - age).isoformat(timespec="microseconds")
    sql(f"sqlite:///{tmp_path / 'ledger.db'}", "UPDATE kafka_eos_decisions SET decided_at = :moment", moment=moment)


@pytest.mark.parametrize("words", [("list",), ("show", LOAD.name, LOAD.key)], ids=" ".join)
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_decision_that_nobody_verifies_is_warned_about_long_before_anything_is_forgotten(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], output: str
) -> None:
    command = ["loads", *words, "--namespace", "team", "--output", output]
    which = f"ledger {ledger.where} ({ledger.ledger_id})\n"
    commit(ledger)
    prepare(ledger, OTHER)
    decided_ago(tmp_path, timedelta(hours=23))
    assert (main(command), capsys.readouterr().err) == (0, which)
    decided_ago(tmp_path, timedelta(hours=25, seconds=5))
    assert main(command) == 0
    captured = capsys.readouterr()
    line = captured.err.removeprefix(which).removesuffix("\n")
    assert "\n" not in line
    assert LOAD.key in line and "1d1h ago" in line and "loads recover" in line
    if output == "table":
        assert "1d1h" in captured.out
    else:
        shown = json.loads(captured.out)
        rows = shown if isinstance(shown, list) else [shown["load"]]
        assert 25 * 3_600_000 < rows[0]["unverified_ms"] < 26 * 3_600_000
        assert all(row["unverified_ms"] is None for row in rows[1:])
    ledger.record_given_up(LOAD, by="me", reason="gone")
    assert (main(command), capsys.readouterr().err) == (0, which)


def test_many_such_decisions_are_a_few_lines_the_oldest_first(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(8):
        commit(ledger, LoadIdentity("team", "orders", f"key-{n}"))
    decided_ago(tmp_path, timedelta(days=3))
    assert main(["loads", "list"]) == 0
    which, *lines = capsys.readouterr().err.splitlines()
    assert which.startswith("ledger ") and len(lines) == 6 and lines[-1].endswith("and 3 more such loads")


def test_without_loads_it_says_so_and_programs_get_an_empty_list(ledger: Ledger, run: Run) -> None:
    assert run("loads", "list") == "no loads\n"
    assert json.loads(run("loads", "list", "--output", "json")) == []


def test_one_load_is_shown_with_its_attempts_and_transactions(ledger: Ledger, run: Run) -> None:
    prepare(ledger)
    ledger.decide_abort(ref(ledger, 1), decided_by="cleanup of run r", reason="a task failed")
    commit(ledger)
    name = ledger.transactions(LOAD, 2)[0].transaction.transactional_id
    ledger.record_outcomes(LOAD, 2, {name: Outcome.COMMITTED})
    shown = json.loads(run("loads", "show", LOAD.name, LOAD.key, "--namespace", "team", "--output", "json"))
    assert shown["load"]["state"] == "COMMITTING"
    assert [(a["number"], a["verdict"], a["reason"]) for a in shown["attempts"]] == [
        (1, "abort", "a task failed"), (2, "commit", ""),
    ]  # fmt: skip
    assert [(t["attempt"], t["outcome"]) for t in shown["transactions"]] == [
        (1, None), (1, None), (2, "committed"), (2, None),
    ]  # fmt: skip
    assert shown["transactions"][2]["transactional_id"] == name
    assert shown["transactions"][2]["prepared_transaction_state"] == "1000:2"
    text = run("loads", "show", LOAD.name, LOAD.key, "--namespace", "team")
    assert "state            COMMITTING" in text and "a task failed" in text and name in text


def test_what_is_gone_is_shown_with_what_to_do(ledger: Ledger, run: Run) -> None:
    commit(ledger)
    lost = ledger.transactions(LOAD, 1)[0].transaction.transactional_id
    ledger.record_outcomes(LOAD, 1, {lost: Outcome.LOST})
    opened = ledger.open_repair(LOAD, 1, lost, opened_by="ada")
    assert opened is not None
    ledger.abandon_repair(LOAD, opened.number, reason="the log has no offset 3 (any more)")
    ledger.record_repairing(LOAD, 1, "Spark partition 0 is gone from the log. Clear prepare", newer=True)
    arguments = ("loads", "show", LOAD.name, LOAD.key, "--namespace", "team")
    shown = json.loads(run(*arguments, "--output", "json"))
    assert shown["load"]["reason"] == "Spark partition 0 is gone from the log. Clear prepare"
    (repair,) = shown["repairs"]
    assert (repair["number"], repair["lost_transactional_id"], repair["state"]) == (2, lost, "undecidable")
    assert (repair["opened_by"], repair["reason"]) == ("ada", "the log has no offset 3 (any more)")
    assert "Clear prepare" in run(*arguments) and "the log has no offset 3" in run(*arguments)


@pytest.mark.parametrize(
    ("name", "key", "remedy"),
    [
        ("load_orders", "2026-01-01T00:00:00", f"Did you mean the key {LOAD.key}."),
        ("load_ordres", LOAD.key, "Did you mean the name load_orders."),
        ("flights", "1", "Run `airflow-kafka-eos loads list` for what it knows"),
    ],
)
def test_an_unknown_load_is_named_with_what_may_be_meant(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], name: str, key: str, remedy: str
) -> None:
    prepare(ledger)
    assert main(["loads", "show", name, key, "--namespace", "team"]) == 2
    error = capsys.readouterr().err
    assert f"ConfigurationError: the ledger knows no load team/{name}/{key}" in error and remedy in error


def test_an_unknown_state_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["loads", "list", "--state", "DONE"])
    assert ended.value.code == 2
    assert "COMMITTED" in capsys.readouterr().err


def test_a_ledger_that_is_up_to_date_says_which_it_is(ledger: Ledger, run: Run) -> None:
    line = run("ledger", "check")
    assert "revision 0012, up to date" in line and ledger.ledger_id in line


def test_a_long_list_has_the_newest_and_says_that_there_are_more(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    commit(ledger)
    for number in range(4):
        ledger.begin(LoadIdentity("team", "orders", str(number)), owner="x")
    decided_ago(tmp_path, timedelta(days=3))

    def listed(*arguments: str) -> tuple[list[str], str]:
        assert main(["loads", "list", "--output", "json", *arguments]) == 0
        captured = capsys.readouterr()
        return [row["key"] for row in json.loads(captured.out)], captured.err

    keys, said = listed("--limit", "2")
    assert keys == ["2", "3"] and "only the 2 loads that were begun last are shown" in said
    assert f"load {LOAD.name} {LOAD.key}" in said and "loads recover" in said, "warned of, however old it is"
    for enough in ("5", "0"):
        keys, said = listed("--limit", enough)
        assert keys == [LOAD.key, "0", "1", "2", "3"] and "there are more" not in said
    keys, said = listed("--limit", "1", "--state", "COMMITTING")
    assert keys == [LOAD.key] and "there are more" not in said
