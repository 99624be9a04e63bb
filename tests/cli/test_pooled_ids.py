"""Commands about an id that is of many attempts: they speak of what its coordinator shows, or of who holds it now."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from tests.cli.conftest import Command
from tests.protocol.lost import lose
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import World

Cluster = tuple[str, str]
pytestmark = pytest.mark.broker


class Terminal(io.StringIO):
    """Somebody sits there and answers."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def pooled(world: World) -> PooledWorld:
    return PooledWorld(**{f.name: getattr(world, f.name) for f in fields(World)})


def name_of(manifest: Manifest) -> str:
    (transaction,) = manifest.transactions
    return transaction.transactional_id


def verdict(world: World) -> Verdict | None:
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None
    return row.verdict


def shown(command: Command, *arguments: str) -> Any:
    answer = command(*arguments, "--output", "json")
    assert answer.code == 0, answer
    return json.loads(answer.out)


def test_describe_says_of_which_attempt_it_speaks(pooled: PooledWorld, command: Command, at: Cluster) -> None:
    name = name_of(pooled.load_all(["a"]))
    # transaction version 2: the end has taken another epoch than the reported one
    ledger = shown(command, "transactions", "describe", name, *at)["ledger"]
    assert (ledger["load"], ledger["found_by"]) == (str(pooled.load), "transactional_id")
    b = pooled.of("b")
    assert b.driver().slot == 0  # nothing written yet
    ledger = shown(command, "transactions", "describe", name, *at)["ledger"]
    assert (ledger["load"], ledger["found_by"]) == (str(b.load), "transactional_id")
    c = pooled.of("c")
    manifest = c.prepare(["c"])
    ledger = shown(command, "transactions", "describe", name_of(manifest), *at)["ledger"]
    assert (ledger["load"], ledger["found_by"]) == (str(c.load), "prepared_transaction_state")


def test_commit_and_abort_are_about_the_present_holder_and_say_so(
    pooled: PooledWorld, command: Command, at: Cluster
) -> None:
    name = name_of(pooled.load_all(["a"]))
    b = pooled.of("b")
    b.prepare(["b"])
    refused = command("transactions", "commit", name, *at)
    assert refused.code == 1 and "it is not decided yet" in refused.err and str(b.load) in refused.err
    asked = command("transactions", "abort", name, *at)
    assert asked.code == 2 and verdict(b) is None
    done = shown(command, "transactions", "abort", name, "--yes", *at)
    assert (done["load"], done["aborted"]) == (str(b.load), [name])
    assert (verdict(pooled), verdict(b), pooled.visible()) == (Verdict.COMMIT, Verdict.ABORT, ["a"])


def test_a_replaced_transaction_s_load_is_decided(world: World, command: Command, at: Cluster) -> None:
    """What a repair has replaced belongs to the decision still (rule: repair-replaces-lost-row)."""
    manifest = world.prepare(["a"])
    world.decide(manifest)
    (transaction,) = manifest.transactions
    lose(world, transaction)
    world.commit()
    name = transaction.transactional_id
    assert shown(command, "transactions", "commit", name, *at)["state"] == "COMMITTED"
    refused = command("transactions", "abort", name, "--yes", *at)
    assert refused.code == 1 and "it can only be rolled forward" in refused.err
    assert world.visible() == ["a"]


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PooledWorld, Cluster]]:
    """A broker without transaction version 2: at rest it shows the very identity that was ended last."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    monkeypatch.setenv(LEDGER_VARIABLE, url)
    with LocalKafka(version="3.9", data_dir=tmp_path / "kafka") as kafka:
        kafka.create_topic("older", partitions=1)
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        load = LoadIdentity("airflow", "orders", "a")
        with connect(settings, url, "airflow") as session:
            yield PooledWorld(session, settings, "older", load), ("--bootstrap-server", kafka.bootstrap_servers)
        kafka.kill()


def test_what_an_earlier_holder_has_ended_is_not_taken_for_the_present_one_s(
    older: tuple[PooledWorld, Cluster], command: Command
) -> None:
    a, at = older
    name = name_of(a.load_all(["a"]))
    b = a.of("b")
    assert b.driver().slot == 0  # nothing written yet
    ledger = shown(command, "transactions", "describe", name, *at)["ledger"]
    assert (ledger["load"], ledger["found_by"]) == (str(a.load), "prepared_transaction_state")
    refused = command("transactions", "commit", name, *at)
    assert refused.code == 1 and "it is not decided yet" in refused.err and str(b.load) in refused.err
    done = shown(command, "transactions", "force-terminate", name, "--yes", *at)
    assert (done["load"], done["verdict"], done["aborted"]) == (str(b.load), "abort", [])
    assert (verdict(a), verdict(b)) == (Verdict.COMMIT, Verdict.ABORT)


def test_a_slot_that_goes_on_while_the_person_thinks_is_left_alone(
    pooled: PooledWorld, command: Command, at: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_of(pooled.prepare(["a"]))
    pooled.session.ledger.make_undecidable(pooled.load, up_to=1, decided_by="x", reason="x")
    b = pooled.of("b")
    theirs: list[Manifest] = []

    class Slow(Terminal):
        def readline(self, *_: object) -> str:  # type: ignore[override]
            pooled.clean()
            theirs.append(b.prepare(["b"]))
            return "y\n"

    monkeypatch.setattr("sys.stdin", Slow())
    assert shown(command, "transactions", "force-terminate", name, *at)["aborted"] == []
    (manifest,) = theirs
    assert (name_of(manifest), verdict(b)) == (name, None)
    b.decide(manifest)
    b.commit()
    assert b.visible() == ["b"]
