"""``transactions``: shown as they are, ended by the rules only, and never without being asked to."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.kafka.admin.inspect import topic_seen
from airflow_kafka_eos.kafka.admin.open_producers import open_producers, write_marker
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import REPAIR_THROWN_AWAY, LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import Outcome, PreparedTransaction, TopicPartition
from tests.cli.conftest import Answer, Command
from tests.kafka.open_transactions import wait_until
from tests.protocol.world import World, foreign_transaction

Cluster = tuple[str, str]
pytestmark = pytest.mark.broker


def one(manifest: Manifest) -> PreparedTransaction:
    (transaction,) = manifest.transactions
    return transaction


def refused(answer: Answer, code: int, *texts: str) -> None:
    assert answer.code == code, answer
    (line,) = answer.err.splitlines()
    for text in texts:
        assert text in line


class Terminal(io.StringIO):
    """Somebody sits there and answers."""

    def isatty(self) -> bool:
        return True


def test_open_transactions_are_listed_with_whose_they_are(
    world: World, command: Command, at: Cluster, stranger: str
) -> None:
    assert command("transactions", "list", *at).out == "no open transactions\n"
    manifest = world.prepare(["a", "b", "c"])
    name = one(manifest).transactional_id
    shown = json.loads(command("transactions", "list", "--output", "json", *at).out)
    (row,) = shown["transactions"]
    assert shown["hidden"] is None
    assert {k: v for k, v in row.items() if k not in ("running_ms", "time_left_ms")} == {
        "transactional_id": name,
        "state": "Ongoing",
        "prepared_transaction_state": str(one(manifest).state),
        "two_phase_commit": False,
        "topic_partitions": len(manifest.prepared[0].writes),
        "load": str(world.load),
        "namespace": world.load.namespace,
        "name": world.load.name,
        "key": world.load.key,
        "attempt": 1,
        "verdict": None,
    }
    assert 0 <= row["running_ms"] < 120_000 and 480_000 < row["time_left_ms"] <= 600_000
    other = str(TransactionalId(world.load, "0123456789", 1, 0, 0))  # the same load, in another deployment
    elsewhere = foreign_transaction(world, other)
    every = json.loads(command("transactions", "list", "--all", "--output", "json", *at).out)["transactions"]
    found = {r["transactional_id"]: r["load"] for r in every}
    assert found[name] == str(world.load) and found[stranger] is None and found[other] is None
    own_id = world.session.ledger.ledger_id
    unknown = str(TransactionalId(replace(world.load, key="forgotten"), own_id, 1, 0, 0))
    forgotten = foreign_transaction(world, unknown)
    every_line = command("transactions", "list", "--all", *at).out.splitlines()
    (of_other,) = (line for line in every_line if line.startswith(other))
    (of_unknown,) = (line for line in every_line if line.startswith(unknown))
    assert of_other.rstrip().endswith("of ledger 0123456789")
    assert of_unknown.rstrip().endswith("this ledger does not know it"), "it is restored: nobody may end that by hand"
    forgotten.abort_transaction(30)
    elsewhere.commit_transaction(30)
    answer = command("transactions", "list", "--all", *at)
    assert "undecided" in answer.out and "not of this ledger" in answer.out
    assert answer.err == (
        f"ledger {world.session.ledger.where} ({world.session.ledger.ledger_id}), Kafka cluster "
        f"{world.session.cluster_id} at {at[1]}, namespace airflow\n"
    )
    assert command("transactions", "list", "--running-longer-than", "2h", *at).out == "no open transactions\n"


def test_a_transaction_in_two_phase_commit_has_no_end(world: World, command: Command, at: Cluster) -> None:
    world.prepare_two_phase(["a"])
    (row,) = json.loads(command("transactions", "list", "--output", "json", *at).out)["transactions"]
    assert (row["two_phase_commit"], row["time_left_ms"]) == (True, None)
    assert "none set" in command("transactions", "list", *at).out


def test_one_is_described_by_coordinator_ledger_and_log(world: World, command: Command, at: Cluster) -> None:
    manifest = world.prepare(["a"])
    name = one(manifest).transactional_id

    def described() -> dict[str, Any]:
        answer = command("transactions", "describe", name, "--output", "json", *at)
        assert answer.code == 0
        return json.loads(answer.out)  # type: ignore[no-any-return]

    shown = described()
    assert (shown["log"], shown["coordinator"]["state"], shown["ledger"]["verdict"]) == ("open", "Ongoing", None)
    assert shown["ledger"]["prepared_transaction_state"] == str(one(manifest).state)
    coordinator = shown["coordinator"]
    assert (coordinator["broker"], coordinator["address"]) == (1, at[1])
    assert (coordinator["producer_id"], coordinator["producer_epoch"]) == (
        one(manifest).state.producer_id, one(manifest).state.producer_epoch,
    )  # fmt: skip
    assert str(coordinator["started_at"]).startswith("20") and 0 <= int(str(coordinator["duration_ms"])) < 120_000
    for_people = command("transactions", "describe", name, *at).out
    for line in (
        r"verdict +undecided", r"log +open", rf"address +{at[1]}", r"started at +20\S+\+00:00", r"duration +\d+(ms|s)",
        rf"name +{world.load.name}", rf"key +{world.load.key}",
    ):  # fmt: skip
        assert re.search(rf"^{line}", for_people, re.MULTILINE), (line, for_people)
    world.decide(manifest)
    world.commit()
    shown = described()
    assert (shown["log"], shown["ledger"]["verdict"]) == ("committed", "commit")
    for_people = command("transactions", "describe", name, *at).out
    assert re.search(r"^verdict +commit$", for_people, re.MULTILINE) and "committed" in for_people
    assert shown["coordinator"]["duration_ms"] is None  # it has ended
    refused(command("transactions", "describe", "nobody", *at), 2, "neither the ledger nor a coordinator knows")


def test_markers_are_shown_by_partition_for_open_does_not_say_that_one_has_its_commit(
    world: World, command: Command, at: Cluster
) -> None:
    """Whoever takes "open" for "no commit marker anywhere", and aborts by hand, tears it."""
    manifest = world.prepare_shared(["a"], ["b"])
    transaction = one(manifest)
    zero, first = (f"{world.topic}-{n}" for n in range(2))

    def described() -> tuple[str, dict[str, str]]:
        answer = command("transactions", "describe", transaction.transactional_id, "--output", "json", *at)
        shown = json.loads(answer.out)
        for_people = command("transactions", "describe", transaction.transactional_id, *at).out
        _, table = for_people.split("\nmarkers\n")
        assert dict(line.split(maxsplit=1) for line in table.splitlines()[2:]) == shown["markers"]
        return shown["log"], shown["markers"]

    assert described() == ("open", {zero: "missing", first: "missing"})
    world.decide(manifest)
    (there, _) = open_producers(world.session.partitions.wire, [TopicPartition(world.topic, n) for n in range(2)])
    write_marker(world.session.partitions.wire, there, Verdict.COMMIT)
    assert described() == ("open", {zero: "commit", first: "missing"})
    world.commit()
    assert described() == ("committed", {zero: "commit", first: "commit"})
    assert world.visible() == ["a", "b"]


def test_of_what_the_ledger_has_no_offsets_no_marker_is_shown(world: World, command: Command, at: Cluster) -> None:
    ref = reference(world.session, world.open_attempt())
    world.write(ref, ["a"])
    (name,) = world.open_ids()
    answer = command("transactions", "describe", name, "--output", "json", *at)
    assert json.loads(answer.out)["markers"] is None
    assert command("transactions", "describe", name, *at).out.endswith("\nmarkers\nnot looked at\n")


def test_commit_rolls_a_decided_load_forward(world: World, command: Command, at: Cluster) -> None:
    manifest = world.prepare(["a"], ["b"])
    world.decide(manifest)
    name = manifest.transactions[1].transactional_id
    answer = command("transactions", "commit", name, "--output", "json", *at)
    assert (answer.code, json.loads(answer.out)["state"]) == (0, "COMMITTED")
    assert world.visible() == ["a", "b"]


def test_commit_commits_nothing_that_nobody_has_decided(
    world: World, command: Command, at: Cluster
) -> None:
    manifest = world.prepare(["a"])
    name = one(manifest).transactional_id
    refused(command("transactions", "commit", name, *at), 1, "it is not decided yet", "Clear the task decide")
    assert (world.open_ids(), world.visible()) == ([name], [])
    world.session.ledger.decide_abort(manifest.attempt, decided_by="x", reason="check")
    refused(command("transactions", "commit", name, *at), 1, "its attempt is aborted")


def test_abort_makes_the_attempt_undecidable_and_sweeps_it(world: World, command: Command, at: Cluster) -> None:
    manifest = world.prepare(["a"], ["b"])
    name = manifest.transactions[0].transactional_id
    answer = command(
        "transactions", "abort", name, "--yes", "--reason", "wrong day", "--output", "json", *at
    )
    shown = json.loads(answer.out)
    assert (answer.code, shown["verdict"], len(shown["aborted"])) == (0, "abort", 2)
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None and (row.verdict, row.reason) == (Verdict.ABORT, "wrong day")
    assert row.decided_by is not None and "airflow-kafka-eos" in row.decided_by
    assert (world.open_ids(), world.visible()) == ([], [])


@pytest.mark.parametrize("verb", ["abort", "force-terminate"])
def test_what_is_decided_is_neither_aborted_nor_terminated(
    world: World, command: Command, at: Cluster, verb: str
) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    name = one(manifest).transactional_id
    refused(command("transactions", verb, name, "--yes", *at), 1, "it can only be rolled forward")
    world.commit()
    assert world.visible() == ["a"]


def test_force_terminate_ends_one_and_leaves_its_siblings_to_cleanup(
    world: World, command: Command, at: Cluster
) -> None:
    manifest = world.prepare(["a"], ["b"])
    first, second = (t.transactional_id for t in manifest.transactions)
    answer = command("transactions", "force-terminate", first, "--yes", "--output", "json", *at)
    assert (answer.code, json.loads(answer.out)["aborted"]) == (0, [first])
    assert world.open_ids() == [second]
    assert command("cleanup", "--yes", *at).code == 0
    assert world.open_ids() == []


@pytest.mark.parametrize("verb", ["commit", "abort", "force-terminate"])
def test_nothing_is_done_to_a_stranger(
    world: World, command: Command, at: Cluster, stranger: str, verb: str
) -> None:
    yes = () if verb == "commit" else ("--yes",)
    refused(command("transactions", verb, stranger, *yes, *at), 2, "it is never ended", stranger)


@pytest.mark.parametrize("verb", ["commit", "abort", "force-terminate"])
def test_what_the_ledger_does_not_know_is_for_a_person_to_look_at(
    world: World, command: Command, at: Cluster, verb: str
) -> None:
    """A ledger restored from a backup: it may have been decided since then."""
    name = str(TransactionalId(replace(world.load, name="lost"), world.session.ledger.ledger_id, 1, 0, 0))
    producer = foreign_transaction(world, name)
    yes = () if verb == "commit" else ("--yes",)
    refused(command("transactions", verb, name, *yes, *at), 1, "the ledger does not know the attempt", name)
    unknown = command("cleanup", "--yes", *at)
    assert unknown.code == 1 and name in unknown.out
    producer.commit_transaction(30)


@pytest.mark.parametrize("verb", ["abort", "force-terminate"])
def test_nothing_is_ended_without_a_yes(
    world: World, command: Command, at: Cluster, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    manifest = world.prepare(["a"])
    name = one(manifest).transactional_id
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # a pipe is nobody
    refused(command("transactions", verb, name, *at), 2, "There is no terminal to ask at", "Add --yes")
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    answer = command("transactions", verb, name, *at)
    assert (answer.code, "[y/N]" in answer.err, "nothing was done" in answer.err) == (2, True, True)
    assert world.session.ledger.attempt(world.load, 1).is_undecided  # type: ignore[union-attr]
    assert world.open_ids() == [name]
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert command("transactions", verb, name, *at).code == 0
    assert world.open_ids() == []


def test_what_is_decided_while_we_ask_is_not_called_aborted(
    world: World, command: Command, at: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = world.prepare(["a"])

    class Slow(Terminal):
        def readline(self, *_: object) -> str:  # type: ignore[override]
            world.decide(manifest)
            return "y\n"

    monkeypatch.setattr("sys.stdin", Slow())
    answer = command("transactions", "abort", one(manifest).transactional_id, *at)
    assert answer.code == 1 and "it can only be rolled forward" in answer.err
    world.commit()
    assert world.visible() == ["a"]


def test_a_decided_load_is_given_up_by_name_before_its_transactions_end(
    world: World, command: Command, at: Cluster
) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    name, (_, load, key) = one(manifest).transactional_id, (world.load.namespace, world.load.name, world.load.key)
    refused(command("loads", "give-up", load, key, "--reason", "r", *at), 2, "no terminal")
    said = command("loads", "give-up", load, key, "--reason", "topic broken", "--yes", *at)
    assert said.code == 0
    next_ = [line.split()[1:] for line in said.err.splitlines() if line.startswith("  airflow-kafka-eos ")]
    assert [words[:3] for words in next_] == [["transactions", "force-terminate", name], ["cleanup", load, key]]
    assert said.err.rstrip().endswith("only then write what is missing")
    row = world.session.ledger.load(world.load)
    assert row is not None and row.state is not LoadState.COMMITTED and "topic broken" in row.reason
    # another load is being written: its transaction is on the same list, and stays
    other = replace(world, load=replace(world.load, key="of today"))
    at_work = one(other.prepare(["b"])).transactional_id
    rows = json.loads(command("transactions", "list", "--output", "json", *at).out)["transactions"]
    assert {(r["transactional_id"], r["key"]) for r in rows} == {(name, key), (at_work, "of today")}
    shown = json.loads(command("loads", "show", load, key, "--output", "json").out)
    assert [t["transactional_id"] for t in shown["transactions"]] == [name]
    asked = command("transactions", "force-terminate", at_work, *at)
    assert asked.code == 2 and "of today, which nobody has decided yet: a run may be working on it?" in asked.err
    assert "nobody has decided" not in command("transactions", "force-terminate", name, *at).err
    unfinished = command(*next_[1], "--quiet", "0s", "--yes", *at)
    assert unfinished.code == 1 and "End each by" in unfinished.out, "not in this order"
    for words in next_:
        more = ("--quiet", "0s") if words[0] == "cleanup" else ()
        assert command(*words, *more, "--yes", *at).code == 0
    assert (world.open_ids(), world.visible()) == ([at_work], [])
    assert all(row.closed_at for row in world.session.ledger.attempts(world.load))
    again = command("loads", "give-up", load, key, "--reason", "r", "--yes", *at)
    assert "no coordinator shows any of it as open" in again.err


def test_a_decided_load_is_recovered(world: World, command: Command, at: Cluster) -> None:
    manifest = world.prepare(["a"])
    undecided = command("loads", "recover", world.load.name, world.load.key, *at)
    refused(undecided, 1, "no commit decision")
    world.decide(manifest)
    answer = command("loads", "recover", world.load.name, world.load.key, "--output", "json", *at)
    assert (answer.code, json.loads(answer.out)["state"]) == (0, "COMMITTED")
    assert world.visible() == ["a"]
    refused(command("loads", "recover", "ordres", "1", *at), 2, "Did you mean the name orders.")


def test_nothing_hangs_here_and_that_is_said(world: World, command: Command, at: Cluster) -> None:
    world.prepare(["a"])
    answer = command("transactions", "hanging", "--topic", world.topic, "--running-longer-than", "0s", *at)
    assert (answer.code, answer.out) == (0, f"no hanging transactions in {world.topic}\n")
    (line,) = answer.err.splitlines()
    ledger, cluster = world.session.ledger, f"Kafka cluster {world.session.cluster_id} at {at[1]}"
    assert line == f"ledger {ledger.where} ({ledger.ledger_id}), {cluster}, namespace airflow", "whose they would be"
    answer = command("transactions", "hanging", "--topic", "nowhere", "--timeout", "2", *at)
    refused(answer, 2, "topic nowhere does not exist")
    assert "--create" not in answer.err, "nothing is to be written there"


def test_cleanup_says_what_it_would_do_asks_and_does_it(world: World, command: Command, at: Cluster) -> None:
    ref = reference(world.session, world.open_attempt())
    world.write(ref, ["never"])
    nothing = command("cleanup", *at)
    assert nothing.code == 0 and nothing.out.startswith("nothing to clean up\n")  # a run may be at work
    soon = command("cleanup", "--abandoned-after", "1h", "--dry-run", *at).out
    assert "not due yet, for a run may be at work (1 transactions open)" in soon and "due at" in soon
    (left,) = json.loads(command("cleanup", "--dry-run", "--output", "json", *at).out)["not_due"]
    assert (left["key"], left["attempt"], left["open"]) == (world.load.key, 1, world.open_ids())
    assert "there is no terminal" in nothing.err and "Add --yes" in nothing.err, "a cron job would fail at night only"
    assert "terminal" not in command("cleanup", "--yes", *at).err
    dry = command("cleanup", "--abandoned-after", "0s", "--dry-run", "--output", "json", *at)
    (row,) = json.loads(dry.out)["loads"]
    assert (dry.code, row["key"], row["up_to_attempt"], row["open"]) == (0, world.load.key, 1, world.open_ids())
    told = command("cleanup", world.load.name, world.load.key, "--dry-run", *at)
    assert (told.code, told.out.count(world.open_ids()[0])) == (0, 1) and row["state"] in told.out
    where, asked = command("cleanup", world.load.name, world.load.key, *at).err.splitlines()
    assert where.startswith(f"ledger {world.session.ledger.where} ") and f" at {at[1]}, namespace airflow" in where
    assert "a run may be working on it" in asked and "--yes" in asked
    refused(command("cleanup", world.load.name, *at), 2, "has no KEY")
    assert len(world.open_ids()) == 1
    done = command(
        "cleanup", "--abandoned-after", "0s", "--quiet", "0s", "--yes", "--output", "json", *at
    )
    (row,) = json.loads(done.out)["loads"]
    assert (done.code, row["clean"], len(row["aborted"]), row["error"]) == (0, True, 1, None)
    assert (world.open_ids(), world.visible()) == ([], [])


def test_cleanup_of_a_load_in_doubt_says_so_and_code_1(world: World, command: Command, at: Cluster) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    world.session.coordinator.end(one(manifest), Verdict.ABORT)  # lost
    answer = command("cleanup", world.load.name, world.load.key, "--yes", *at)
    assert answer.code == 1 and "was aborted although the decision was commit" in answer.out
    assert "loads recover" in answer.out
    again = command("cleanup", "--yes", "--output", "json", *at)  # REPAIRING by now, and nothing open
    (row,) = json.loads(again.out)["loads"]
    assert (again.code, row["key"], row["clean"]) == (1, world.load.key, False)


def test_what_is_to_be_run_for_a_load_in_doubt_names_that_load(world: World, command: Command, at: Cluster) -> None:
    world = replace(world, load=replace(world.load, key="1 of 2"))
    manifest = world.prepare("abcdefgh")
    world.decide(manifest)
    wire = world.session.partitions.wire
    (wrong,) = open_producers(wire, [TopicPartition(world.topic, 0)])
    write_marker(wire, wrong, Verdict.ABORT)  # by a hand
    of = (world.load.name, world.load.key)
    in_doubt = (
        command("loads", "recover", *of, *at),
        command("transactions", "commit", one(manifest).transactional_id, *at),
        command("cleanup", *of, "--yes", *at),
        command("cleanup", "--yes", *at),
        command("loads", "set-committed", *of, "--reason", "seen", "--yes", *at),
    )
    for answer in in_doubt:
        said = answer.out + answer.err
        assert answer.code and f"`airflow-kafka-eos loads recover {world.load.in_command}`" in said, answer
        assert "NAME KEY" not in said
    assert command("loads", "give-up", *of, "--reason", "r", "--yes", *at).code == 0
    given_up = command("loads", "recover", *of, *at)
    refused(given_up, 1, f"`airflow-kafka-eos cleanup {world.load.in_command}` finds it clean")


def test_without_a_topic_hanging_looks_at_those_of_the_ledgers_loads_and_names_them(
    world: World, command: Command, at: Cluster, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    hanging = ("transactions", "hanging", *at)
    refused(command(*hanging), 2, "knows no existing topic of namespace airflow", "--topic")
    gone = replace(world, topic=topic(), load=replace(world.load, key="gone"))
    other = topic(prefix="other")  # nobody's
    for one in (world, gone):
        one.prepare(["a", "b", "c"])
        sweep(one.session, one.load, up_to=1, by="test")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([gone.topic])[gone.topic].result(30)
    wait_until(lambda: topic_seen(world.session.partitions.wire, gone.topic) is None, "the topic to be gone")
    answer = command(*hanging)
    assert (answer.code, answer.out) == (0, f"no hanging transactions in {world.topic}\n")
    named, where, narrowed = answer.err.splitlines()
    assert where.startswith("ledger ")
    assert named == f"topics of the ledger's prepared loads: {world.topic}; deleted since: {gone.topic}"
    assert narrowed.startswith("only what has had no record for 20m was looked at"), "else it reads as: nothing hangs"
    assert "only what" not in command(*hanging, "--running-longer-than", "0s").err
    assert other not in answer.err
    answer = command(*hanging, "--output", "json")
    assert (json.loads(answer.out), world.topic in answer.err) == ([], True)
    refused(command(*hanging, "--namespace", "elsewhere"), 2, "knows no existing topic of namespace elsewhere")


def test_cleanup_of_a_load_that_is_repaired_asks_with_what_that_throws_away(
    world: World, command: Command, at: Cluster
) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    world.session.coordinator.end(one(manifest), Verdict.ABORT)  # lost
    ledger, name = world.session.ledger, one(manifest).transactional_id
    ledger.record_outcomes(world.load, 1, {name: Outcome.LOST})
    assert ledger.open_repair(world.load, 1, name, opened_by="a run of prepare") is not None
    cleanup = ("cleanup", world.load.name, world.load.key)
    asked = command(*cleanup, *at)
    assert asked.code == 2 and REPAIR_THROWN_AWAY in asked.err and "--yes" in asked.err
    assert [r.state for r in ledger.repairs(world.load)] == [RepairState.OPEN]
    assert command(*cleanup, "--yes", *at).code == 1
    assert [r.state for r in ledger.repairs(world.load)] == [RepairState.UNDECIDABLE]
