"""Commands with a connection to another Kafka cluster than the one that the load was written to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE, SETTINGS_VARIABLE
from tests.cli.conftest import Command
from tests.protocol.world import World

Cluster = tuple[str, str]
pytestmark = pytest.mark.broker

LOAD = ("orders", "2026-01-01")


@pytest.fixture(scope="module")
def there() -> Iterator[Cluster]:
    """The argument that names the other cluster."""
    with LocalKafka(version="4.4.0") as running:
        yield ("--bootstrap-server", running.bootstrap_servers)


def test_a_person_is_refused_there_and_served_here(
    world: World, command: Command, at: Cluster, there: Cluster
) -> None:
    (transaction,) = world.prepare(["a"]).transactions
    name, here = transaction.transactional_id, str(world.session.cluster_id)
    for arguments in (
        ("transactions", "abort", name, "--yes"),
        ("transactions", "force-terminate", name, "--yes"),
        ("cleanup", *LOAD, "--yes"),
    ):
        answer = command(*arguments, *there)
        assert answer.code == 2, answer
        assert f"was written to Kafka cluster {here}, the connection leads to" in answer.out + answer.err
    attempt = world.session.ledger.attempt(world.load, 1)
    assert attempt is not None and attempt.is_undecided and world.open_ids() == [name]
    (shown,) = json.loads(command("loads", "show", *LOAD, "--output", "json").out)["attempts"]
    assert shown["cluster_id"] == here
    every = ("cleanup", "--abandoned-after", "0s", "--quiet", "0s", "--yes")
    answer = command(*every, *there, "--output", "json")
    assert answer.code == 1, answer
    found = json.loads(answer.out)
    assert found["loads"] == []
    assert [(row["key"], row["attempt"], row["cluster_id"]) for row in found["other_cluster"]] == [(LOAD[1], 1, here)]
    passed_over = command(*every, *there).out
    assert here in passed_over and "AIRFLOW_KAFKA_EOS_KAFKA" in passed_over
    assert world.open_ids() == [name]
    assert command(*every, *at).code == 0
    attempt = world.session.ledger.attempt(world.load, 1)
    assert attempt is not None and attempt.verdict is Verdict.ABORT and world.open_ids() == []


@pytest.mark.parametrize("closed", [False, True])
def test_a_load_of_another_cluster_is_not_shown_as_if_it_were_in_doubt(
    world: World, command: Command, at: Cluster, there: Cluster, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its markers are not there. It does not matter by what the wrong cluster was chosen."""
    manifest = world.prepare(["a"])
    world.decide(manifest)
    if closed:
        world.commit()
    describe = ("transactions", "describe", manifest.transactions[0].transactional_id)
    assert command(*describe, *at).code == 0
    monkeypatch.setenv(SETTINGS_VARIABLE, json.dumps({"bootstrap.servers": there[1]}))
    refused = command(*describe)
    assert (refused.code, refused.out) == (2, ""), refused
    assert f"written to Kafka cluster {world.session.cluster_id}, the connection leads to" in refused.err
    for way in ("--kafka-conn-id", "--bootstrap-server", "--command-config", SETTINGS_VARIABLE):
        assert way in refused.err


def test_a_decided_load_is_recovered_and_given_up_where_it_is(
    world: World, command: Command, at: Cluster, there: Cluster
) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    for arguments in (
        ("loads", "recover", *LOAD),
        ("loads", "give-up", *LOAD, "--reason", "x", "--yes"),
        ("transactions", "commit", manifest.transactions[0].transactional_id),
    ):
        answer = command(*arguments, *there)
        assert (answer.code, "OtherClusterError: attempt 1 of load" in answer.err) == (2, True), answer
    row = world.session.ledger.load(world.load)
    assert row is not None and row.state is LoadState.COMMITTING
    assert command("loads", "recover", *LOAD, *at).code == 0
    assert world.visible() == ["a"]


def test_a_cluster_that_is_gone_for_good_is_forgotten_and_its_loads_go_on(
    world: World, command: Command, at: Cluster
) -> None:
    with LocalKafka(version="4.4.0") as gone:
        gone.create_topic(world.topic, partitions=2)
        of_gone = KafkaSettings.from_mapping({"bootstrap.servers": gone.bootstrap_servers})
        with connect(of_gone, os.environ[LEDGER_VARIABLE], "airflow") as session:
            old = str(session.cluster_id)
            there = replace(world, session=session, settings=of_gone)
            there.prepare(["a"])
            done = replace(there, load=LoadIdentity("airflow", "orders", "decided"))
            done.decide(done.prepare(["x"]))
    refused = command("cleanup", *LOAD, "--yes", *at)
    assert (refused.code, f"ledger forget-cluster {old}" in refused.err + refused.out) == (2, True), refused
    # nobody has agreed to it
    assert command("ledger", "forget-cluster", old).code == 2
    assert command("cleanup", *LOAD, "--yes", *at).code == 2
    # clusters of before Kafka 2.8 may have an id like this
    none = command("ledger", "forget-cluster", "-another", "--yes")
    assert (none.code, ": 0 attempts" in none.out) == (1, True), none
    forgotten = command("ledger", "forget-cluster", old, "--yes")
    assert (forgotten.code, ": 2 attempts" in forgotten.out) == (0, True), forgotten
    # what was decided cannot be completed: this topic is another one of that name
    assert command("loads", "recover", "orders", "decided", *at).code == 1
    row = world.session.ledger.load(done.load)
    assert row is not None and row.state is LoadState.IN_DOUBT
    assert command("cleanup", *LOAD, "--quiet", "0s", "--yes", *at).code == 0
    world.load_all(["b"])
    assert world.visible() == ["b"]
