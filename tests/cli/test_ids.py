"""``ids``: what brokers keep, and a slot in doubt that only a person settles."""

from __future__ import annotations

import json
import shlex
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import InDoubtError
from airflow_kafka_eos.load import LoadIdentity
from tests.cli.conftest import Command
from tests.cli.test_transactions import Terminal
from tests.kafka_tools import Shell
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import World

pytestmark = pytest.mark.broker


@pytest.fixture
def pooled(world: World) -> PooledWorld:
    made = PooledWorld(world.session, world.settings, world.topic, world.load)
    return replace(made, load=LoadIdentity("airflow", f"orders of {world.topic}", "one"))


def test_the_report_counts_by_load_name(pooled: PooledWorld, command: Command, at: tuple[str, str]) -> None:
    assert command("ids", "report", *at).out.startswith("no ids\n")
    pooled.load_all(["a"], ["b"])
    answer = command("ids", "report", "--output", "json", *at)
    report = json.loads(answer.out)
    (row,) = report["names"]
    assert (answer.code, report["ids"], report["expiration_ms"]) == (0, 2, 604_800_000)
    assert {k: v for k, v in row.items() if k not in ("oldest_s", "bytes")} == {
        "name": pooled.load.name, "ids": 2, "pooled": 2, "incrementing": 0,
        "slots": 1, "leased": 0, "quarantined": 0, "in_doubt": 0, "slots_in_doubt": [], "expired": 0,
    }  # fmt: skip
    shown = command("ids", "report", *at).out
    assert pooled.load.name in shown and "2 ids, about 1 KiB" in shown and "7 days" in shown


def test_a_slot_in_doubt_is_settled_by_a_person_only(
    pooled: PooledWorld, command: Command, at: tuple[str, str], tmp_path: Path
) -> None:
    name = pooled.load.name
    answer = command("ids", "settle", name, "0", "--yes", *at)
    assert (answer.code, "not in doubt" in answer.err) == (2, True)
    pooled.load_all(["a"])
    pooled.session.ledger.put_slot_in_doubt("airflow", name, 0, "committed as 7:8")
    assert command("ids", "report", *at).code == 1
    (row,) = json.loads(command("ids", "report", "--output", "json", *at).out)["names"]
    assert row["slots_in_doubt"] == [0], "the argument of the next command"
    answer = command("ids", "settle", name, "0", *at)
    assert (answer.code, "committed as 7:8" in answer.err) == (2, True)
    ledger = tmp_path / "ledger.db"
    with closing(sqlite3.connect(ledger)) as opened, opened:
        (cluster,) = opened.execute("SELECT cluster_id FROM kafka_eos_attempts").fetchone()
        opened.execute("UPDATE kafka_eos_attempts SET cluster_id = 'another'")
    answer = command("ids", "settle", name, "0", "--yes", *at)
    assert (answer.code, "was written to Kafka cluster another" in answer.err) == (2, True), "its attempt is closed"
    assert "ledger forget-cluster another" in answer.err
    assert pooled.slot().doubt is not None
    assert command("ledger", "forget-cluster", "another", "--yes", *at[2:]).code == 0
    with closing(sqlite3.connect(ledger)) as opened:
        assert opened.execute("SELECT cluster_id FROM kafka_eos_attempts").fetchone() == (None,) != (cluster,)
    assert command("ids", "settle", name, "0", "--yes", *at).code == 0
    assert pooled.slot().doubt is None


def test_a_slot_is_not_settled_while_something_is_open_under_it(
    pooled: PooledWorld, command: Command, at: tuple[str, str], tmp_path: Path, shell: Shell
) -> None:
    """A writer that outlived its quarantine: each remedy names what ends it, for no command of ours does."""
    killed, following = pooled.of("killed"), pooled.of("next")
    name = killed.task_id(killed.driver())
    killed.clean()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as opened, opened:
        opened.execute("UPDATE kafka_eos_slots SET quarantined_until = '2000-01-01T00:00:00.000000+00:00'")
    killed.write_arrow(name, ["late"])
    by_hand = "kafka-transactions.sh --bootstrap-server … forceTerminateTransaction --transactionalId ID"
    settle = shlex.join(["airflow-kafka-eos", "ids", "settle", pooled.load.name, "0", "--namespace", "airflow"])
    printed = f"`{settle} --kafka-conn-id …`"
    with pytest.raises(InDoubtError, match="open as") as found:
        following.open_attempt()
    with pytest.raises(InDoubtError, match="is in doubt") as again:
        following.open_attempt()
    for remedy in (found.value.remedy, again.value.remedy):
        assert f"`{by_hand}`" in remedy and printed in remedy
    for verb in ("abort", "force-terminate"):
        refused = command("transactions", verb, str(name), "--yes", *at)
        assert refused.code == 1 and f"`{by_hand}`" in refused.err and "Transactional ids" in refused.err
    left = command("cleanup", "--yes", *at)
    assert left.code == 1 and f"{name}: no attempt that holds its slot has begun it" in left.out
    refused = command(*shlex.split(settle)[1:], "--yes", *at)
    assert refused.code == 1 and str(name) in refused.err and f"`{by_hand}`" in refused.err
    assert pooled.slot().doubt is not None
    ended = shell(by_hand.replace("…", at[1]).replace("ID", shlex.quote(str(name))))
    assert ended.code == 0, ended
    assert command(*shlex.split(settle)[1:], "--yes", *at).code == 0
    following.load_all(["x"])
    assert (pooled.open_ids(), pooled.visible()) == ([], ["x"])


def test_a_slot_is_not_settled_when_something_was_opened_under_it_behind_the_question(
    pooled: PooledWorld, command: Command, at: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked, somebody looks for an hour."""
    killed = pooled.of("killed")
    name = killed.task_id(killed.driver())
    killed.clean()
    pooled.session.ledger.put_slot_in_doubt("airflow", pooled.load.name, 0, "committed as 7:8")

    def late() -> str:
        killed.write_arrow(name, ["late"])
        return "y\n"

    terminal = Terminal()
    monkeypatch.setattr(terminal, "readline", late)
    monkeypatch.setattr("sys.stdin", terminal)
    answer = command("ids", "settle", pooled.load.name, "0", *at)
    assert answer.code == 1 and "Nothing is open. Was it looked at? [y/N]" in answer.err and str(name) in answer.err
    assert (pooled.open_ids(), pooled.slot().doubt) == ([str(name)], "committed as 7:8")
