"""``streams``: which queries there are, and what only a person may say of one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import StreamRow
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from tests.cli.conftest import Command
from tests.ledger.ledger_support import sql

FIRST, SECOND = (f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", url)
    with Ledger.open(url, upgrade=True) as ledger:
        ledger.bind_stream(MicroBatch("airflow", "orders", FIRST, 0, "o"), StreamRun("/old", "driver"))
    return url


def row(url: str) -> StreamRow:
    with Ledger.open(url) as ledger:
        found = ledger.stream("airflow", "orders")
    assert found is not None
    return found


def test_queries_are_listed(url: str, command: Command) -> None:
    (one,) = json.loads(command("streams", "list", "--output", "json").out)
    assert (one["name"], one["query_id"], one["checkpoint"], one["decided"]) == ("orders", FIRST, "/old", -1)
    assert "orders" in command("streams", "list").out
    others = command("streams", "list", "--namespace", "other")
    assert others.out == "no streaming queries\n"
    assert others.err.startswith("ledger sqlite:///") and others.err.endswith(", namespace other\n")


def test_those_whose_last_batch_is_old(url: str, command: Command) -> None:
    """A batch that nobody has decided yet counts from when its query was bound; others' batches do not count."""
    late = ("streams", "list", "--idle", "1h", "--output", "json")
    assert (command(*late).code, json.loads(command(*late).out)) == (0, [])
    long_ago = "2026-01-01T00:00:00.000000+00:00"
    sql(url, "UPDATE kafka_eos_streams SET bound_at = :at", at=long_ago)
    assert (command(*late).code, json.loads(command(*late).out)[0]["decided_at"]) == (1, None)
    new = datetime.now(UTC).isoformat(timespec="microseconds")
    of_query = "INSERT INTO kafka_eos_stream_batches SELECT id, query_id, :number, :digest, :at FROM kafka_eos_streams"
    sql(url, of_query, number=6, digest="o", at=long_ago)
    sql(url, of_query, number=7, digest="o", at=new)
    sql(url, "UPDATE kafka_eos_streams SET decided = 7")
    assert (command(*late).code, row(url).decided_at) == (0, new)
    assert command("streams", "list", "--idle", "1h").out == "no streaming query is late\n"
    sql(url, "UPDATE kafka_eos_streams SET decided = 6")
    assert (command(*late).code, row(url).decided_at) == (1, long_ago)
    assert command(*late, "--name", "orders").code == 1
    assert command(*late, "--name", "another").code == 2, "an alert on a name that is mistyped would never come"
    assert command("streams", "list", "--name", "another").code == 2
    assert command("streams", "set", "orders", "--decided", "9", "--yes").code == 0
    assert row(url).decided_at is None, "a person has said so"


def test_a_name_that_was_set_free_is_no_query_that_is_late(url: str, command: Command) -> None:
    """Nothing takes its row away: an alert on all queries would never be quiet again."""
    sql(url, "UPDATE kafka_eos_streams SET bound_at = :at", at="2026-01-01T00:00:00.000000+00:00")
    assert command("streams", "list", "--idle", "1h").code == 1
    assert command("streams", "set", "orders", "--forget-query", "--yes").code == 0
    assert command("streams", "list", "--idle", "1h").code == 0
    assert command("streams", "list", "--idle", "1h", "--name", "orders").code == 1, "somebody waits for that very one"
    assert "orders" in command("streams", "list").out


def test_the_ledger_may_be_named_by_a_file_as_a_driver_has_it(
    url: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text(f"{url}\n")
    file.chmod(0o600)
    monkeypatch.delenv("AIRFLOW_KAFKA_EOS_LEDGER")
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER_FILE", str(file))
    assert "orders" in command("streams", "list").out
    file.chmod(0o644)
    refused = command("streams", "list")
    assert refused.code == 2 and "AIRFLOW_KAFKA_EOS_LEDGER_FILE names" in refused.err


def test_a_task_on_a_worker_finds_the_ledger_by_the_worker_s_environment(
    url: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/streams.md: Airflow's supervisor has taken its own database away from the task, and what that starts."""
    late = ("streams", "list", "--name", "orders", "--idle", "1h")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for section in ("CORE", "DATABASE"):
        monkeypatch.setenv(f"AIRFLOW__{section}__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    assert command(*late).out == "no streaming query is late\n"
    monkeypatch.delenv("AIRFLOW_KAFKA_EOS_LEDGER")
    monkeypatch.setenv("AIRFLOW__KAFKA_EOS__LEDGER_CONN_ID", "of_the_loads")
    connection = {"conn_type": "kafka_eos_ledger", "host": f"{tmp_path}/ledger.db", "extra": {"backend": "sqlite"}}
    monkeypatch.setenv("AIRFLOW_CONN_OF_THE_LOADS", json.dumps(connection))
    assert command(*late).out == "no streaming query is late\n"


def test_what_a_person_says_of_one(url: str, command: Command) -> None:
    assert command("streams", "set", "none", "--decided", "3", "--yes").code == 2
    assert command("streams", "set", "orders", "--decided", "3").code == 2  # nobody has answered
    with pytest.raises(SystemExit):
        command("streams", "set", "orders", "--decided", "-2", "--yes")
    assert row(url).decided == -1
    assert command("streams", "set", "orders", "--decided", "3", "--yes").code == 0
    back = command("streams", "set", "orders", "--decided", "-1", "--yes")
    assert back.code == 0 and "BACKWARDS: this ledger has batch 3 of query orders as decided" in back.err
    assert row(url).decided == -1
    assert command("streams", "set", "orders", "--decided", "3", "--yes").code == 0
    assert command("streams", "set", "orders", "--checkpoint", "file:///new/", "--yes").code == 0
    assert (row(url).decided, row(url).checkpoint, row(url).query_id) == (3, "/new", FIRST)
    assert "free" in command("streams", "set", "orders", "--forget-query", "--yes").out
    assert command("streams", "set", "orders", "--decided", "3", "--yes").code == 2
    with Ledger.open(url) as ledger:
        bound = ledger.bind_stream(MicroBatch("airflow", "orders", SECOND, 0, "o"), StreamRun("/third", "driver"))
    assert (bound.query_id, bound.checkpoint, bound.decided) == (SECOND, "/third", -1)
    assert command("ledger", "new-id", "--yes").code == 0
    assert row(url).decided is None
    assert "last batch 7" in command("streams", "set", "orders", "--decided", "7", "--yes").out
