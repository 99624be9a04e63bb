"""The demo's own figures must be able to be wrong."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.demo import audit
from airflow_kafka_eos.sandbox.demo.backfill import task_of
from airflow_kafka_eos.sandbox.demo.main import Demo
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec

DAY = audit.Day("2013-01-01", frozenset({1, 2, 3}), ("id", "1", "2", "3"))


def figures(seen: dict[int, int], decision: str = "commit", still_open: int = 0) -> audit.Figures:
    return audit.count(DAY, DAY.day, Counter(seen), 1, decision, still_open)


def test_all_of_a_day_once_is_right() -> None:
    assert figures({1: 1, 2: 1, 3: 1, 99: 1}).is_right  # 99 is of another day


@pytest.mark.parametrize(
    ("wrong", "missing", "duplicates"),
    [
        (figures({1: 1, 2: 1}), 1, 0),
        (figures({1: 1, 2: 2, 3: 1}), 0, 1),
        (figures({1: 2, 2: 1}), 1, 1),
        (figures({1: 1, 2: 1, 3: 1}, decision="abort"), 0, 0),
        (figures({1: 1, 2: 1, 3: 1}, still_open=1), 0, 0),
    ],
)
def test_anything_else_is_not(wrong: audit.Figures, missing: int, duplicates: int) -> None:
    assert not wrong.is_right
    assert (wrong.missing, wrong.duplicates) == (missing, duplicates)


def test_a_record_of_no_loaded_day_is_seen() -> None:
    assert audit.strangers([DAY], Counter({1: 1, 99: 2})) == [99]


def test_the_summary_has_the_keys_that_others_read() -> None:
    assert list(figures({}).as_json()) == [
        "load",
        "source_records",
        "attempts",
        "decision",
        "visible_records",
        "missing",
        "duplicates",
        "open_transactions",
    ]


def test_the_source_is_all_flights_of_2013() -> None:
    days = audit.days(365)
    assert sum(len(d.ids) for d in days) == 336_776
    assert len(frozenset[int]().union(*(d.ids for d in days))) == 336_776
    assert [len(d.ids) for d in days[:5]] == [842, 943, 914, 915, 720]
    assert all(len(d.lines) == len(d.ids) + 1 for d in days)


def test_a_late_day_is_written_in_part_and_whole_later(tmp_path: Path) -> None:
    assert audit.deliver(tmp_path, DAY, part=0.5) == 1
    assert (tmp_path / "2013-01-01.csv").read_text() == "id\n1\n"
    assert (tmp_path / "2013-01-01.count").read_text() == "3"
    assert audit.deliver(tmp_path, DAY) == 3
    assert (tmp_path / "2013-01-01.csv").read_text() == "id\n1\n2\n3\n"


@pytest.mark.parametrize("days", ["0", "4", "366"])
def test_the_demo_refuses_a_number_of_days_without_room_for_its_mishaps(
    days: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--days", days, "--folder", str(tmp_path / "demo")])
    assert (ended.value.code, f"--days: '{days}' is no whole number" in capsys.readouterr().err) == (2, True)


def test_the_demo_empties_no_folder_that_is_not_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("four years of work")
    (tmp_path / "source").mkdir()
    assert main(["demo", "--folder", str(tmp_path)]) == 2
    assert "thesis.txt" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "thesis.txt"]


def test_two_demos_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Demo(tmp_path, 5, print)):
        assert main(["demo", "--folder", str(tmp_path)]) == 2
        assert "another demo runs in" in capsys.readouterr().err
    with closing(Demo(tmp_path, 5, print)) as second:  # and what the first has left is emptied
        assert sorted(p.name for p in second.folder.iterdir()) == ["airflow", "dags", "source"]


def test_the_demo_brings_its_dag_along(tmp_path: Path) -> None:
    with closing(Demo(tmp_path, 5, print)) as demo:
        found = sorted(str(p.relative_to(demo.folder / "dags")) for p in (demo.folder / "dags").rglob("*.py"))
    assert found == ["flights.py", "jobs/flights.py"]


def test_the_ledger_is_upgraded_and_shown_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    assert main(["loads", "list"]) == 2  # another one is meant, or nobody has made it
    assert "airflow-kafka-eos ledger upgrade" in capsys.readouterr().err
    assert main(["ledger", "upgrade"]) == 0
    assert "empty -> " in capsys.readouterr().out
    assert main(["loads", "list"]) == 0


@pytest.mark.parametrize("other", ["base64:e30=", "@/nowhere/1.spec", '{"of": "another program"}', "orders.yaml", ""])
def test_the_task_to_kill_is_found_beside_whatever_else_was_submitted_here(other: str) -> None:
    """Another project's spark-submit with a --spec of its own must not end the search: the demo would kill nobody."""
    ref = AttemptRef(LoadIdentity("demo", "flights", "2013-01-03"), "0123456789", 2)
    spec = ApplicationSpec(WriteOptions(ref, "/manifests", ("flights",), 60_000, 2**40), sql="select 1")
    with ExitStack() as started:
        for text in (other, spec.to_json()):
            line = [sys.executable, "-c", "print(flush=True); input()", "SparkSubmit", "--spec", text]
            process = started.enter_context(Popen(line, stdin=PIPE, stdout=PIPE))
            started.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
        found = task_of(AttemptRef(ref.load, ref.ledger_id, 1))
        assert found is not None
        assert (found[0], found[1].pid) == (ref, os.getpid())
        assert task_of(AttemptRef(ref.load, "another", 1)) is None
