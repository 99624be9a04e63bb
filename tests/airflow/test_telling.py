"""Asset events of `loaded`, by the task SDK and Airflow's own database, without a scheduler."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import a_prepared_load, run
from tests.kafka.open_transactions import wait_until
from tests.protocol.world import foreign_transaction

WAITS = "Pausing task as DEFERRED"
STATES = "SELECT state FROM task_instance WHERE dag_id = 'telling'"
HERE = Path(__file__).parent


def ask(home: Path, query: str) -> list[Any]:
    if not (home / "airflow.db").exists():
        return []
    with sqlite3.connect(f"file:{home}/airflow.db?mode=ro", uri=True) as db:
        try:
            return db.execute(query).fetchall()
        except sqlite3.OperationalError:  # not migrated yet, or locked at this moment
            return []


def a_committed_load(
    home: Path, kafka: LocalKafka, key: str, topic: str, second: tuple[str, int] | None = None
) -> None:
    a_prepared_load(home, kafka, key, topic, 3, second=second)
    run("decide", key)
    run("commit", key)


def test_a_load_is_told_of_once_also_when_loaded_waited_and_runs_again(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic()
    # open before the load's own: readers of the load wait for it, so loaded does, in the triggerer
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    stranger = foreign_transaction(SimpleNamespace(settings=settings, topic=name), "theirs")  # type: ignore[arg-type]
    second, other = topic(), topic()
    a_committed_load(home, kafka, "told", name, (second, 2))
    of_alias = f"kafka://events/{name} by a.b/%C3%BC%20%25"
    with Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db") as ledger:
        assert ledger.acquire_lease([of_alias], by="another task", ttl=timedelta()) is None
    another_has_it_since(home, "2100")
    environment = os.environ | {
        "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "telling"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "TEST_TOPIC": name,
        "TEST_SECOND_TOPIC": second,
    }
    command = [sys.executable, str(HERE / "telling_process.py")]
    twice = [*command, "2026-01-01", "2026-01-02"]
    log = (home / "telling.log").open("wb")

    def said_so_far() -> str:
        return (home / "telling.log").read_text(errors="replace")

    with log, subprocess.Popen(twice, env=environment, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: WAITS in said_so_far() or process.poll() is not None, "the wait", 150)
            stranger.abort_transaction(30)
            wait_until(lambda: bool(waits(said_so_far())) or process.poll() is not None, "the lease", 150)
            another_has_it_since(home, "2000")
            wait_until(lambda: process.poll() is not None, "the end of both runs", 150)
        finally:
            process.kill()  # only does something when a wait has failed
    said = said_so_far()[-3000:]
    assert process.returncode == 0, said
    assert WAITS in said_so_far()
    assert ask(home, STATES) == [("success",), ("success",)], said
    found = ask(home, "SELECT a.uri, e.extra, e.partition_key FROM asset_event e JOIN asset a ON a.id = e.asset_id")
    events = {uri: (json.loads(extra), key) for uri, extra, key in found}
    assert len(events) == len(found), "each once, although it ran twice"
    common = {k: v for k, v in events["file:///report"][0].items() if k != "records"}
    assert (common["load"], common["attempt"]) == ("airflow/a.b/ü %/told", 1)
    assert {uri: extra for uri, (extra, _) in events.items()} == {
        "file:///report": common | {"records": 5},
        f"kafka://events/{name}": common | {"records": 3, "offsets": {"0": [1, 3]}},
        f"kafka://events/{second}": common | {"records": 2, "offsets": {"0": [0, 1]}},
    }, "and nothing of the topic that it may write to, and has not"
    assert {key for _, key in events.values()} == {None}
    woken = ask(home, "SELECT q.target_dag_id FROM asset_dag_run_queue q ORDER BY 1")
    assert woken == [("reader_of_report",), ("reader_of_topic",)]
    assert ask(home, "SELECT * FROM asset_partition_dag_run") == []

    # a reader knows the topic's asset; that this alias has it too, Airflow has yet to note, and another had the lease
    of_second = f"kafka://events/{second}"
    to_make = sorted([of_second, f"{of_second} by a.b/%C3%BC%20%25", of_alias])
    assert waits(said_so_far()) == [", ".join(to_make)], "and not in the second run: Airflow has all of it"

    # a load of that name to a topic of its own waits for nobody
    a_committed_load(home, kafka, "last", other)
    environment |= {"TEST_LOADED_TOPIC": other, "TEST_KEY": "last"}
    last = subprocess.run(
        [*command, "2026-01-03"], env=environment, capture_output=True, text=True, check=True, timeout=150
    )
    assert waits(last.stdout + last.stderr) == []
    with Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db") as ledger:
        holder = ledger.acquire_lease([f"kafka://events/{other}"], by="whoever comes next", ttl=timedelta(days=1))
        assert holder and holder.startswith("telling/"), "it acquired the lease itself"
    uri = f"kafka://events/{other}"
    assert ask(home, f"SELECT a.name FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.uri = '{uri}'") == [
        (uri,)
    ]


def waits(said: str) -> list[str]:
    """What runs of loaded have waited to make."""
    return re.findall(r"waits for its lease to create (.*?) in Airflow \(another task has the lease\)", said)


def another_has_it_since(home: Path, moment: str) -> None:
    with closing(sqlite3.connect(home / "kafka_eos_ledger.db", timeout=30)) as db, db:
        db.execute("UPDATE kafka_eos_turns SET taken_at = ? WHERE taken_by = 'another task'", [moment])
