"""``transactions`` for hands that know ``kafka-transactions.sh``: its lists, its arguments, its ways to name one."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest

from airflow_kafka_eos.transaction import TopicPartition
from tests.cli.conftest import Command
from tests.cli.test_transactions import Cluster, one, refused
from tests.protocol.world import World

pytestmark = pytest.mark.broker


def test_a_list_shows_name_and_key_as_loads_show_takes_them(world: World, command: Command, at: Cluster) -> None:
    odd = replace(world, load=replace(world.load, name="daily orders", key="it's 2026-01-01T00:00:00+00:00"))
    odd.prepare(["a"])
    for listed in (command("transactions", "list", *at), command("loads", "list")):
        (row,) = (line for line in listed.out.splitlines() if "'daily orders'" in line)
        words = shlex.split(row)
        at_name = words.index("daily orders")
        assert command("loads", "show", *words[at_name : at_name + 2]).code == 0, row


def test_every_state_is_listed_as_kafka_transactions_lists_it(
    world: World, command: Command, at: Cluster, stranger: str
) -> None:
    def ids(*arguments: str) -> dict[str, str]:
        answer = command("transactions", "list", *arguments, "--output", "json", *at)
        assert answer.code == 0, answer
        return {row["transactional_id"]: row["state"] for row in json.loads(answer.out)["transactions"]}

    done = one(world.load_all(["a"])).transactional_id
    open_ = one(replace(world, load=replace(world.load, key="later")).prepare(["b"])).transactional_id
    assert ids() == {open_: "Ongoing"}
    assert ids("--state", "CompleteCommit") == {done: "CompleteCommit"}
    assert ids("--state", "completecommit", "--state", "Ongoing") == {done: "CompleteCommit", open_: "Ongoing"}
    assert ids("--state", "any") == {done: "CompleteCommit", open_: "Ongoing"}
    assert ids("--state", "PrepareAbort") == {}
    assert {done, open_, stranger} <= ids("--state", "any", "--all").keys()
    # under the names of kafka-transactions.sh
    assert ids("--all", "--transactional-id-pattern", f"{re.escape(stranger)[:-1]}.") == {stranger: "Ongoing"}
    assert ids("--duration-filter", "7200000") == {} and ids("--duration-filter", "-1") == {open_: "Ongoing"}
    table = command("transactions", "list", "--state", "any", *at).out
    assert re.search(rf"{re.escape(done)} +CompleteCommit +- +- ", table), table


def test_the_producers_of_a_partition_are_described_without_a_ledger(
    world: World, command: Command, at: Cluster, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = one(world.prepare(["a", "b", "c"]))
    written = world.session.ledger.transactions(world.load, 1)[0].writes[0]
    monkeypatch.setenv("AIRFLOW_KAFKA_EOS_LEDGER", "sqlite:////nowhere/none.db")
    place = ("--topic", written.topic, "--partition", str(written.partition))
    answer = command("transactions", "describe-producers", *place, "--output", "json", *at)
    rows = {row["transactional_id"]: row for row in json.loads(answer.out)}
    mine = rows[transaction.transactional_id]
    state = (mine["producer_id"], mine["producer_epoch"])
    assert state == (transaction.state.producer_id, transaction.state.producer_epoch)
    assert mine["start_offset"] == written.first_offset and mine["last_timestamp"].startswith("20")
    assert answer.code == 0 and answer.err.startswith("Kafka cluster ") and at[1] in answer.err
    of_broker = command("transactions", "describe-producers", *place, "--broker-id", "1", "--output", "json", *at)
    assert json.loads(of_broker.out) == json.loads(answer.out)
    assert transaction.transactional_id in command("transactions", *at, "describe-producers", *place).out
    nowhere = command("transactions", "describe-producers", *place, "--broker-id", "77", *at)
    refused(nowhere, 2, "there is no broker 77")
    far = ("--topic", written.topic, "--partition", "99")
    refused(command("transactions", "describe-producers", *far, *at), 2, "has no partition 99")
    gone = ("--topic", "nowhere", "--partition", "0", "--timeout", "2")
    answer = command("transactions", "describe-producers", *gone, *at)
    refused(answer, 2, "topic nowhere does not exist", "It was deleted")
    assert "--create" not in answer.err


def test_a_transaction_is_aborted_by_where_it_is_open(world: World, command: Command, at: Cluster) -> None:
    transaction = one(world.prepare(["a", "b", "c"]))
    written = world.session.ledger.transactions(world.load, 1)[0].writes[0]
    place = ("--topic", written.topic, "--partition", str(written.partition), "--start-offset")
    missed = command("transactions", "abort", *place, str(written.first_offset + 1), "--yes", *at)
    refused(missed, 2, f"open from: {written.first_offset}", "describe-producers` shows")
    assert world.open_ids() == [transaction.transactional_id]
    done = command("transactions", "abort", *place, str(written.first_offset), "--yes", "--quiet", "0s", *at)
    assert done.code == 0, done
    assert (world.open_ids(), world.visible()) == ([], [])


def test_a_strangers_is_not_aborted_by_where_it_is_open(
    world: World, command: Command, at: Cluster, stranger: str
) -> None:
    found = world.session.partitions.producers([TopicPartition(world.topic, n) for n in range(2)])
    ((tp, producer),) = ((tp, p) for tp, rows in found.items() for p in rows if p.txn_start_offset >= 0)
    place = ("--topic", tp.topic, "--partition", str(tp.partition), "--start-offset", str(producer.txn_start_offset))
    refused(command("transactions", "abort", *place, "--yes", *at), 2, "it is never ended", stranger)


@pytest.mark.parametrize("option", ["--transactional-id", "--transactionalId"])
def test_kafkas_own_names_are_taken(world: World, command: Command, at: Cluster, option: str) -> None:
    name = one(world.prepare(["a"])).transactional_id
    described = command("transactions", *at, "describe", option, name)
    assert described.code == 0 and name in described.out
    assert command("transactions", *at, "forceTerminateTransaction", option, name, "--yes").code == 0
    assert world.open_ids() == []
