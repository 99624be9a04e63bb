"""Hanging transactions, made for real: found by producer state, ended only when they are ours (KIP-664;
rule: only-our-ids)."""

from __future__ import annotations

import itertools
import json
import logging
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.cli import main
from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, UndecidableError
from airflow_kafka_eos.kafka.admin.coordinator import Listed
from airflow_kafka_eos.kafka.admin.inspect import topic_seen
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming, Verdict
from airflow_kafka_eos.manifest import ManifestEntry, PartitionWrites, TopicInfo
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.hanging import (
    HangingTransaction,
    Whose,
    abort,
    end_ours,
    find,
    is_behind,
    longest_wait_ms,
    of_the_ledger,
    what_to_do,
)
from airflow_kafka_eos.protocol.repair.recover import give_up
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.driver_secrets import LEDGER_VARIABLE
from airflow_kafka_eos.transaction import PreparedTransaction, TopicPartition
from tests.kafka.open_transactions import wait_ended, wait_until
from tests.protocol.forgetful import decide_anyway, end, prepare_forgotten, shown
from tests.protocol.late import add_partition, produce_late
from tests.protocol.lax import lax_kafka, session_on, world_on
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.test_restored import backup, checkpoint, restored
from tests.protocol.world import RUN, World, foreign_transaction

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def old() -> Iterator[LocalKafka]:
    """Transaction version 1, and brokers that ask no coordinator about a produce request, as before KIP-890."""
    with lax_kafka("3.9") as running:
        yield running


@pytest.fixture(scope="module")
def old_session(old: LocalKafka, ledger_url: str) -> Iterator[Session]:
    with session_on(old, ledger_url) as opened:
        yield opened


@pytest.fixture
def here(old: LocalKafka, old_session: Session) -> World:
    """A topic with two partitions on that broker."""
    return world_on(old, old_session, "hanging", partitions=2)


@pytest.fixture
def pooled(old: LocalKafka, here: World, tmp_path: Path) -> Iterator[PooledWorld]:
    """There, with a ledger file of its own."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with session_on(old, url) as opened:
        yield PooledWorld(opened, here.settings, here.topic, here.load)


def places(world: World) -> list[TopicPartition]:
    return [TopicPartition(world.topic, n) for n in range(2)]


def look(world: World) -> list[HangingTransaction]:
    return find(world.session, places(world), longer_than_ms=0)


def prepare(world: World, *values: str, partition: int = 0) -> PreparedTransaction:
    """An attempt with one transaction, all of it in one partition."""
    ref = reference(world.session, world.open_attempt())
    name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 0)
    transaction, writes = world.write_arrow(name, values, partition=partition)
    record_prepared(world.session, world.manifest(ref, [ManifestEntry(0, transaction, writes)]))
    return transaction


def decide(world: World) -> None:
    row = world.session.ledger.attempts(world.load)[-1]
    (recorded,) = world.session.ledger.transactions(world.load, row.number)
    entry = ManifestEntry(0, recorded.transaction, recorded.writes)
    world.decide(world.manifest(reference(world.session, row), [entry]))


def sweep_all(world: World) -> None:
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass


def late(world: World, transaction: PreparedTransaction, sequence: int, partition: int = 0) -> None:
    assert produce_late(world.settings, transaction, places(world)[partition], "late", sequence) == 0


@pytest.mark.broker
class TestOnTransactionVersion1:
    def test_a_late_produce_behind_the_commit_is_found_and_ended_and_the_load_stays_whole(
        self, here: World
    ) -> None:
        transaction = prepare(here, "a", "b")
        decide(here)
        here.commit()
        late(here, transaction, 2)
        (found,) = look(here)
        assert (found.whose, found.transactional_id) == (Whose.OURS, transaction.transactional_id)
        assert found.why == "its coordinator shows CompleteCommit"
        assert (found.producer.state, found.producer.txn_start_offset) == (transaction.state, 3)
        abort(here.session, found)
        assert look(here) == []
        stable = here.session.partitions.last_stable_offsets(places(here))
        assert stable == here.session.partitions.end_offsets(places(here))  # readers are held back no more
        assert here.visible() == ["a", "b"]

    def test_a_late_produce_behind_the_sweep_is_found_and_ended(self, here: World) -> None:
        transaction = prepare(here, "a")
        sweep_all(here)
        late(here, transaction, 1)
        (found,) = look(here)
        assert (found.whose, found.why) == (Whose.OURS, "its coordinator shows CompleteAbort")
        abort(here.session, found)
        assert (look(here), here.visible()) == ([], [])
        with pytest.raises(UndecidableError, match="is not hanging any more"):
            abort(here.session, found)

    def test_cleanup_by_name_ends_what_hangs_of_an_attempt_that_was_swept_before(
        self, here: World, ledger_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It is "clean" for a person whose readers stand still."""
        monkeypatch.setenv(LEDGER_VARIABLE, ledger_url)
        transaction = prepare(here, "a")
        sweep_all(here)
        late(here, transaction, 1)
        cleanup = ["cleanup", here.load.name, here.load.key, "--namespace", "test", "--quiet", "0s", "--yes"]
        servers = here.settings.bootstrap_servers
        assert main([*cleanup, "--output", "json", "--bootstrap-server", servers]) == 0
        (row,) = json.loads(capsys.readouterr().out)["loads"]
        assert (row["clean"], row["aborted"]) == (True, [transaction.transactional_id])
        assert look(here) == []

    @pytest.mark.parametrize("by_name", [True, False])
    def test_cleanup_says_that_it_has_not_looked_for_what_hangs_elsewhere_and_what_does(
        self,
        here: World,
        by_name: bool,
        ledger_url: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """An attempt that never reported: neither ledger nor coordinators know where it has something open."""
        monkeypatch.setenv(LEDGER_VARIABLE, ledger_url)
        ref = reference(here.session, here.open_attempt())
        name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 0)
        transaction, _ = here.write_arrow(name, ["a"], partition=0)
        sweep_all(here)
        late(here, transaction, 1)
        at = ["--bootstrap-server", here.settings.bootstrap_servers]
        named = [here.load.name, here.load.key] if by_name else []
        assert main(["cleanup", *named, "--namespace", "test", "--quiet", "0s", "--yes", *at]) == 0
        (printed,) = re.findall(r"`airflow-kafka-eos ([^`]*)`", capsys.readouterr().err)
        assert main([*shlex.split(printed), "--topic", here.topic, "--output", "json", *at]) == 1
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["transactional_id"], row["whose"]) == (transaction.transactional_id, "ours")

    def test_a_late_produce_of_a_load_that_was_given_up_is_ours_to_end(self, here: World) -> None:
        """Nobody completes it any more, so there is no decision to wait for."""
        transaction = prepare(here, "a")
        decide(here)
        here.session.coordinator.end(transaction, Verdict.ABORT)  # lost
        late(here, transaction, 1)
        (found,) = look(here)
        assert found.whose is Whose.DECIDED
        give_up(here.session, here.load, by=RUN, reason="loaded by hand")
        (found,) = look(here)
        assert found.whose is Whose.OURS
        abort(here.session, found)
        assert (look(here), here.visible()) == ([], [])

    def test_what_a_coordinator_still_has_open_is_not_hanging(self, here: World) -> None:
        prepare(here, "a")
        foreign_transaction(here, f"stranger-{here.load.key}")
        assert look(here) == []

    def test_one_without_a_record_for_a_short_time_is_left_to_its_coordinator(self, here: World) -> None:
        transaction = prepare(here, "a")
        sweep_all(here)
        late(here, transaction, 1)
        assert longest_wait_ms(here.session) >= 900_000
        assert find(here.session, places(here)) == []
        assert len(look(here)) == 1

    def test_an_undecided_attempts_stray_partition_is_not_ended(self, here: World) -> None:
        transaction = prepare(here, "a", partition=0)
        late(here, transaction, 0, partition=1)  # never added to the transaction
        (found,) = look(here)
        assert found.whose is Whose.UNDECIDED
        assert found.why == "its coordinator's open transaction does not have this partition"
        with pytest.raises(UndecidableError, match="is ours, undecided"):
            abort(here.session, found)
        forged = replace(found, whose=Whose.OURS)  # what was ours a moment ago is looked at again
        with pytest.raises(UndecidableError, match="is ours, undecided"):
            abort(here.session, forged)
        assert len(look(here)) == 1

    def test_a_decided_load_is_verified_before_anything_of_it_is_ended(self, here: World) -> None:
        transaction = prepare(here, "a", partition=0)
        decide(here)
        late(here, transaction, 0, partition=1)
        (found,) = look(here)
        assert found.whose is Whose.DECIDED
        with pytest.raises(UndecidableError, match="is ours, decided"):
            abort(here.session, found)
        here.commit()
        (found,) = look(here)
        assert found.whose is Whose.OURS
        abort(here.session, found)
        assert (look(here), here.visible()) == ([], ["a"])

    @pytest.mark.parametrize("kind", ["another application", "another ledger", "another namespace"])
    def test_a_foreign_one_is_shown_and_never_ended(self, here: World, kind: str) -> None:
        ours = here.session.ledger.ledger_id
        name = {
            "another application": f"orders-service-{here.load.key}",
            "another ledger": str(TransactionalId(here.load, "0123456789", 1, 0, 0)),
            "another namespace": str(TransactionalId(replace(here.load, namespace="other"), ours, 1, 0, 0)),
        }[kind]
        for load in (here.load, replace(here.load, namespace="other")):  # known, and aborted
            here.session.ledger.begin(load, owner=RUN)
            here.session.ledger.make_undecidable(load, up_to=1, decided_by=RUN, reason="")
        stranger = strange(here, name)
        (found,) = look(here)
        assert (found.whose, found.transactional_id) == (Whose.FOREIGN, name)
        for seen in (found, replace(found, whose=Whose.OURS)):
            with pytest.raises(ConfigurationError, match="never ended here"):
                abort(here.session, seen)
        assert [h.producer.state for h in look(here)] == [stranger.state]

    def test_ending_ours_leaves_what_is_not_and_does_not_fail_over_it(self, here: World) -> None:
        transaction = prepare(here, "a")
        sweep_all(here)
        late(here, transaction, 1)
        stranger = strange(here, f"orders-service-{here.load.key}")
        ended = end_ours(here.session, places(here), here.load, up_to=9)
        assert [h.producer.state for h in ended] == [transaction.state]
        assert [h.producer.state for h in look(here)] == [stranger.state]

    def test_the_same_producer_id_on_another_cluster_makes_nothing_ours(
        self, here: World, session: Session
    ) -> None:
        """One ledger, two clusters: producer ids are small numbers, and meet."""
        stranger = strange(here, f"orders-service-{here.load.key}")
        ref = reference(session, here.open_attempt())
        name = str(TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 0))
        writes = (PartitionWrites(here.topic, 0, 1, 1, 0, 0, "0" * 32, 1),)
        entry = ManifestEntry(0, PreparedTransaction(name, stranger.state), writes)
        there = replace(here.manifest(ref, [entry]), topics={here.topic: TopicInfo("of another cluster", 2)})
        record_prepared(session, there)
        session.ledger.decide_abort(ref, decided_by=RUN, reason="refused")
        assert [h.whose for h in look(here)] == [Whose.FOREIGN]


    def test_the_command_shows_all_and_ends_ours_when_told_to(
        self,
        here: World,
        ledger_url: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv(LEDGER_VARIABLE, ledger_url)
        transaction = prepare(here, "a", partition=0)
        sweep_all(here)
        late(here, transaction, 1)
        stranger = strange(here, f"billing-{here.load.key}")
        servers = here.settings.bootstrap_servers
        look_for = ["transactions", "hanging", "--topic", here.topic, "--bootstrap-server", servers]
        look_for += ["--namespace", "test", "--output", "json", "--running-longer-than"]

        def run(*more: str) -> tuple[int, list[dict[str, Any]]]:
            capsys.readouterr()
            code = main([*look_for, *more])
            return code, json.loads(capsys.readouterr().out or "[]")

        assert run("2h") == (0, [])
        code, rows = run("0s")
        assert code == 1
        assert {r["transactional_id"]: (r["whose"], r["load"], r["aborted"]) for r in rows} == {
            transaction.transactional_id: ("ours", str(here.load), False),
            stranger.transactional_id: ("foreign", None, False),
        }
        assert run("0s", "--abort") == (2, [])  # nobody said yes
        assert len(look(here)) == 2
        code, rows = run("0s", "--abort", "--yes")
        assert (code, [r["whose"] for r in rows if r["aborted"]]) == (1, ["ours"])  # the stranger's is left
        assert [h.producer.state for h in look(here)] == [stranger.state]

    def test_a_zombie_that_begins_anew_under_a_committed_identity_is_terminated(self, here: World) -> None:
        """The coordinator knows it, so it is not hanging: on transaction version 1 an end does not bump the epoch."""
        transaction = prepare(here, "a")
        decide(here)
        here.commit()
        add_partition(here.settings, transaction, places(here)[0])
        late(here, transaction, 1)
        assert (look(here), here.open_ids()) == ([], [transaction.transactional_id])
        assert (
            force_terminate(here.session, transaction.transactional_id, by=RUN, reason="zombie")
            == transaction
        )
        assert (here.open_ids(), here.visible()) == ([], ["a"])

    def test_what_hangs_under_a_slot_is_not_ended_while_one_of_the_name_s_shows_an_unknown_commit(
        self, pooled: PooledWorld, tmp_path: Path
    ) -> None:
        """Who held the slot last in the backup is not whose it is: that load is decided, and visible in part."""
        pooled.load_all(["before"])
        checkpoint(pooled)
        backup(tmp_path)
        forgotten = pooled.of("forgotten")
        transaction = commit_in_part(forgotten)
        behind = replace(pooled, session=restored(pooled, tmp_path))
        (found,) = look(behind)
        assert (found.whose, found.transactional_id) == (Whose.OURS, transaction.transactional_id)
        with pytest.raises(InDoubtError, match=r"has not decided what the broker shows.*under slots"):
            abort(behind.session, found)
        assert len(shown(pooled, transaction)) == 1
        behind.session.ledger.close()
        forgotten.commit()
        assert pooled.visible() == ["a", "b", "before"]

    def test_one_that_is_refused_keeps_no_other_from_being_ended(self, pooled: PooledWorld, tmp_path: Path) -> None:
        aborted = pooled.of("aborted")
        aborted.naming = TransactionNaming.INCREMENTING
        its = prepare(aborted, "x", partition=1)
        sweep_all(aborted)
        pooled.load_all(["before"])
        checkpoint(pooled)
        backup(tmp_path)
        transaction = commit_in_part(pooled.of("forgotten"))
        late(aborted, its, 1, partition=1)  # behind the other one
        behind = replace(pooled, session=restored(pooled, tmp_path))
        ended: list[HangingTransaction] = []
        with pytest.raises(InDoubtError, match="under slots"):
            end_ours(behind.session, places(behind), ended=ended)
        assert [h.producer.state for h in ended] == [its.state]
        assert [h.producer.state for h in look(behind)] == [transaction.state]
        behind.session.ledger.close()

    def test_what_hangs_under_a_slot_is_not_taken_for_its_present_holders(
        self,
        pooled: PooledWorld,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Else ``transactions abort`` ends a load that is at work, and leaves what was pointed at."""
        monkeypatch.setenv(LEDGER_VARIABLE, f"sqlite:///{tmp_path}/ledger.db")
        aborted = pooled.of("aborted")
        (its,) = aborted.prepare(["x"]).transactions
        sweep_all(aborted)
        late(aborted, its, 0, partition=1)  # in partition 0 the next transaction would take it in
        at_work = pooled.of("at work")
        (present,) = at_work.prepare(["y"]).transactions
        assert present.transactional_id == its.transactional_id
        for one, code, ended in ((its, 1, []), (present, 0, [present.transactional_id])):
            (producer,) = shown(pooled, one)
            place = ["--topic", pooled.topic, "--partition", str(producer.partition.partition)]
            place += ["--start-offset", str(producer.txn_start_offset)]
            to = ["--bootstrap-server", pooled.settings.bootstrap_servers, "--namespace", "test"]
            capsys.readouterr()
            assert main(["transactions", "abort", *place, *to, "--yes", "--quiet", "0s", "--output", "json"]) == code
            said = capsys.readouterr()
            if ended:
                assert json.loads(said.out)["aborted"] == ended
            else:
                assert "it hangs, and the id was given to attempt 1 of load" in said.err
                assert f"transactions hanging --topic {pooled.topic}" in said.err
                assert pooled.open_ids() == [present.transactional_id]
        assert pooled.visible() == []


def commit_in_part(world: World) -> PreparedTransaction:
    """Decided, and committed in partition 0; its coordinator has forgotten partition 1."""
    manifest = prepare_forgotten(world, "ab", known=[0])
    decide_anyway(world, manifest)
    return end(world, manifest, Verdict.COMMIT)


def strange(world: World, name: str) -> PreparedTransaction:
    """Another application's hanging transaction."""
    producer = foreign_transaction(world, name)
    seen = world.session.coordinator.describe([name])[name]
    (place,) = seen.partitions
    producer.commit_transaction(30)
    transaction = PreparedTransaction(name, seen.state)
    assert produce_late(world.settings, transaction, place, "late", 1) == 0
    return transaction


def test_what_ends_while_we_look_is_not_hanging(world: World) -> None:
    """The leader showed it open, and by the time that the coordinators are asked it is ended."""
    transaction = prepare(world, "a")
    decide(world)

    class Ends(Partitions):
        def listed(self, producer_ids: Iterable[int]) -> list[Listed]:
            world.commit()
            # before it has, its coordinator's word is enough: nothing that is being ended is hanging
            wait_ended(world.session.coordinator, transaction.transactional_id)
            return super().listed(producer_ids)

    ends = replace(world.session, partitions=Ends(world.session.partitions.wire))
    assert find(ends, places(world), longer_than_ms=0) == []
    assert world.open_ids() == []


def test_what_a_listing_hides_is_described_by_the_ledgers_name(world: World) -> None:
    """A coordinator that is just moving: without its id, an open transaction would look like a hanging one."""
    prepare(world, "a")

    class Hiding(Partitions):
        def listed(self, producer_ids: Iterable[int]) -> list[Listed]:
            return []

    hidden = replace(world.session, partitions=Hiding(world.session.partitions.wire))
    assert find(hidden, places(world), longer_than_ms=0) == []


def test_what_began_before_the_last_record_is_the_decided_transaction_itself(world: World) -> None:
    transaction = prepare(world, "a", "b")
    decide(world)
    world.commit()
    every = world.session.ledger.prepared_as([transaction.state])  # of the other cluster's loads too
    ((attempt, row),) = [(a, t) for a, t in every if t.transaction == transaction]
    producer = OpenProducer(places(world)[0], *_identity(transaction), 0, 2, 0)
    assert is_behind(producer, attempt, row.last_offsets)
    assert not is_behind(producer._replace(txn_start_offset=1), attempt, row.last_offsets)
    assert not is_behind(producer, replace(attempt, closed_at=None), row.last_offsets)


@pytest.mark.parametrize("name", ["it%27s.0123456789.orders.2026.1-0-0", "it%27s.0123456789.orders.p0-load"])
def test_what_is_of_another_ledgers_load_gets_no_marker_by_hand(name: str) -> None:
    """That load may be decided, and visible in other partitions: an abort marker would tear it."""
    text = said_of(name)
    assert "write no marker by hand" in text and "kafka-transactions.sh" not in text
    assert "--topic orders --running-longer-than 0s --namespace 'it'\"'\"'s' --conn-id …`" in text
    assert "loads recover NAME KEY" in text


def test_another_applications_is_ended_by_hand_and_one_without_an_id_only_behind_a_look_with_other_ledgers() -> None:
    for name, looks in (("billing", False), (None, True)):
        text = said_of(name)
        assert text.endswith("abort --topic orders --partition 0 --start-offset 3")
        assert ("`airflow-kafka-eos transactions hanging --topic orders" in text.partition(" Else ")[0]) is looks


def said_of(name: str | None) -> str:
    producer = OpenProducer(TopicPartition("orders", 0), 7, 0, 0, 3, 0)
    return what_to_do(HangingTransaction(producer, name, "", 0, Whose.FOREIGN), "kafka:9092")


def _identity(transaction: PreparedTransaction) -> tuple[int, int]:
    return transaction.state.producer_id, transaction.state.producer_epoch


def test_from_kafka_4_on_a_late_produce_is_refused(world: World) -> None:
    """KIP-890: nothing can hang where the broker asks the coordinator, or ends bump the epoch."""
    transaction = prepare(world, "a")
    sweep_all(world)
    place = TopicPartition(world.topic, 0)
    assert produce_late(world.settings, transaction, place, "late", 1) != 0
    assert find(world.session, [place], longer_than_ms=0) == []


@pytest.mark.broker
def test_a_partition_without_a_leader_keeps_no_other_from_being_looked_at(
    ledger_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalKafka(brokers=3, heap="256m") as kafka:
        kafka.create_topic("t", partitions=3, replication=1)
        with session_on(kafka, ledger_url) as opened:
            session = replace(opened, namespace="away")
            wire = session.partitions.wire
            world = World(session, wire.settings, "t", LoadIdentity("away", "orders", "1"))
            prepare(world, "a", partition=0)
            assert of_the_ledger(session) == [TopicPartition("t", n) for n in range(3)]

            def leaders() -> dict[int, int]:
                seen = topic_seen(wire, "t")
                assert seen is not None
                return {p.partition: p.leader for p in seen.partitions}

            kafka.kill(leaders()[1])
            wait_until(lambda: leaders()[1] < 0, "the controller's notice")
            with caplog.at_level(logging.WARNING):
                left = of_the_ledger(session)
            assert left == [TopicPartition("t", n) for n, leader in leaders().items() if leader >= 0]
            assert TopicPartition("t", 1) not in left and left
            assert "no leader: t-1" in caplog.text
            assert end_ours(session, left) == []


def test_what_ends_one_of_ours_is_found_as_it_was_found() -> None:
    """By the default it is not there for twenty minutes, and the command would end nothing, and say so as a success."""
    producer = OpenProducer(TopicPartition("t", 0), 1, 0, 5, 0, 0)
    hanging = HangingTransaction(producer, "id", "", 0, Whose.OURS)
    told = what_to_do(hanging, "kafka:9092", " --running-longer-than 1s")
    assert told == "airflow-kafka-eos transactions hanging --topic t --running-longer-than 1s --abort ends it"
