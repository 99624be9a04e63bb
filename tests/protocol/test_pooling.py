"""Pooled transactional ids (FLIP-511): bounded, and used again only after a verified end.

Rules: verified-end-before-reuse, look-at-the-slot.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from airflow_kafka_eos.errors import InDoubtError, KafkaEosError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.producer.writers import initialise
from airflow_kafka_eos.ledger.slots import text_of
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionNaming, Verdict
from airflow_kafka_eos.naming import PooledId, TransactionalId
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.guards.slots import check_slot
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.kafka.open_transactions import wait_until
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import RUN, foreign_transaction
from tests.transaction_version import finalize

_names = itertools.count(1)
LOADS = int(os.environ.get("AIRFLOW_KAFKA_EOS_TEST_LOADS", "100"))


@pytest.fixture
def world(session: Session, settings: KafkaSettings, topic: Callable[..., str]) -> PooledWorld:
    """A load name of its own, so that its slots are too."""
    load = LoadIdentity("test", f"pooled-{next(_names)}", "first")
    return PooledWorld(session, settings, topic(partitions=2), load)


def sql(ledger_url: str, statement: str, **values: Any) -> None:
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(statement), values)
    engine.dispose()


def end_quarantine(ledger_url: str, world: PooledWorld) -> None:
    sql(
        ledger_url,
        "UPDATE kafka_eos_slots SET quarantined_until = '2000-01-01T00:00:00.000000+00:00' WHERE load_name = :name",
        name=world.load.name,
    )


def test_many_loads_of_one_name_leave_as_many_ids_as_one_has_tasks(world: PooledWorld) -> None:
    for n in range(LOADS):
        world.of(str(n)).load_all([f"{n}-a"], [f"{n}-b"], [f"{n}-c"])
    assert len(world.ids_on_broker()) == 3
    assert [s.number for s in world.session.ledger.slots("test", world.load.name)] == [0]
    assert len(world.visible()) == 3 * LOADS
    assert world.open_ids() == []


def test_parallelism_from_2_to_8_to_3_leaves_8_ids(world: PooledWorld) -> None:
    for key, tasks in (("a", 2), ("b", 8), ("c", 3), ("d", 8)):
        world.of(key).load_all(*([f"{key}{n}"] for n in range(tasks)))
    assert len(world.ids_on_broker()) == 8
    assert len(world.visible()) == 21


def test_loads_of_one_name_at_once_have_a_slot_each(world: PooledWorld) -> None:
    one, two = world.of("one"), world.of("two")
    first, second = one.prepare(["a"]), two.prepare(["b"])
    assert (first.attempt.slot, second.attempt.slot) == (0, 1)
    one.decide(first)
    two.decide(second)
    two.commit()
    one.commit()
    assert world.visible() == ["a", "b"]
    world.of("three").load_all(["c"])
    assert len(world.ids_on_broker()) == 2


def test_scope_load_uses_its_one_id_again(world: PooledWorld) -> None:
    for key in ("a", "b", "c"):
        world.of(key).load_shared([f"{key}0"], [f"{key}1"])
    assert [str(PooledId.parse(i).role.value) for i in world.ids_on_broker()] == ["load"]  # type: ignore[union-attr]
    assert world.visible() == ["a0", "a1", "b0", "b1", "c0", "c1"]


def test_in_scope_load_a_second_writer_of_a_partition_is_still_refused(world: PooledWorld) -> None:
    world.of("a").load_shared(["a0"])
    other = world.of("b")
    manifest = other.prepare_shared(["b0"])
    (shared,) = manifest.transactions
    with pytest.raises(KafkaEosError, match="this Spark task has written there"):
        other.write_arrow(PooledId.parse(shared.transactional_id), ["again"], shared=shared.state, partition=0)  # type: ignore[arg-type]


def test_the_strategy_may_change_from_run_to_run(world: PooledWorld) -> None:
    for n, naming in enumerate([*TransactionNaming, *TransactionNaming]):
        one = world.of(str(n))
        one.naming = naming
        one.load_all([f"{n}"])
    assert world.visible() == ["0", "1", "2", "3"]
    kinds = [type(PooledId.parse(i) or TransactionalId.parse(i)) for i in world.ids_on_broker()]
    assert (kinds.count(PooledId), kinds.count(TransactionalId)) == (1, 2)


def test_a_stage_that_runs_again_skips_ids_that_are_initialised(world: PooledWorld) -> None:
    world.load_all(["first"])
    again = world.of("again")
    ref = again.driver()
    first = again.task_id(ref)
    again.write_arrow(first, ["stage attempt 0"])
    retried = again.task_id(ref)  # Spark counts its attempts from 0 again
    assert [PooledId.parse(str(i)).number for i in (first, retried)] == [0, 1]  # type: ignore[union-attr]
    accepted = again.task(ref, ["stage attempt 1"])
    assert accepted.transaction is not None
    assert accepted.transaction.transactional_id == str(retried)
    manifest = again.manifest(ref, [accepted])
    record_prepared(again.session, manifest, writers_left=True)
    again.decide(manifest)
    again.commit()
    again.clean()
    assert (again.open_ids(), again.visible()) == ([], ["first", "stage attempt 1"])
    assert again.slot().quarantined_until is not None


def test_an_id_that_was_initialised_and_never_written_is_skipped_too(world: PooledWorld) -> None:
    ref = world.driver()
    name = world.task_id(ref)
    world.session.coordinator.init_producer_id(str(name), 60_000)
    assert world.task_id(ref) != name
    world.session.coordinator.init_producer_id(str(world.task_id(ref)), 60_000)
    assert PooledId.parse(str(world.task_id(ref, attempt_number=1))).number == 2  # type: ignore[union-attr]


def test_a_quarantined_slot_is_left_alone_until_its_time(world: PooledWorld, ledger_url: str) -> None:
    killed = world.of("killed")
    ref = killed.driver()
    killed.task(ref, ["never reported"])
    killed.clean()
    assert killed.open_ids() == []
    assert world.of("b").load_all(["b"]).attempt.slot == 1
    end_quarantine(ledger_url, world)
    assert world.of("c").load_all(["c"]).attempt.slot == 0
    assert len(world.ids_on_broker()) == 2
    assert world.visible() == ["b", "c"]


def test_a_slot_is_not_used_again_before_its_end_is_verified(world: PooledWorld) -> None:
    one = world.of("one")
    manifest = one.prepare(["a"])
    one.decide(manifest)
    one.session.coordinator.end_many(manifest.transactions, Verdict.COMMIT)  # Kafka knows, nobody has looked
    assert world.of("two").open_attempt().slot == 1
    one.commit()
    assert world.of("three").open_attempt().slot == 0


def test_a_zombie_of_the_lease_before_cannot_write_what_is_committed(world: PooledWorld) -> None:
    ref = world.driver()
    old = world.task(ref, ["old"])
    manifest = world.manifest(ref, [old])
    record_prepared(world.session, manifest, writers_left=False)
    world.decide(manifest)
    world.commit()
    again = world.of("again").prepare(["new"])
    assert [t.transactional_id for t in again.transactions] == [t.transactional_id for t in manifest.transactions]
    assert old.transaction is not None
    # a late commit of the first load, and a late abort: both name the state of their own transaction
    for verdict in Verdict:
        world.session.coordinator.end(old.transaction, verdict)
    world.of("again").decide(again)
    world.of("again").commit()
    assert world.visible() == ["new", "old"]


def test_what_a_killed_attempt_left_under_its_slot_is_ended(world: PooledWorld) -> None:
    ref = world.driver()
    entries = [world.task(ref, ["a"], 0), world.task(ref, ["b"], 1)]
    again = world.driver()  # a retried prepare
    assert (ref.slot, again.slot) == (0, 1)
    world.task(again, ["c"], 0)
    world.session.ledger.make_undecidable(world.load, up_to=1, decided_by=RUN, reason="x")
    open_now = world.open_ids()
    assert [PooledId.parse(i).slot for i in open_now] == [1]  # type: ignore[union-attr]
    assert all(e.transaction and e.transaction.transactional_id not in open_now for e in entries)


def test_a_slot_that_went_to_another_load_is_that_load_s(world: PooledWorld) -> None:
    one, two = world.of("one"), world.of("two")
    one.load_all(["a"])
    manifest = two.prepare(["b"])
    assert manifest.attempt.slot == 0
    report = sweep(one.session, one.load, up_to=99, by=RUN)
    assert report.is_quiet
    two.decide(manifest)
    two.commit()
    assert world.visible() == ["a", "b"]


def test_an_incrementing_load_whose_key_looks_like_a_slot_is_not_touched(world: PooledWorld) -> None:
    other = world.of("p0-0")
    other.naming = TransactionNaming.INCREMENTING
    theirs = other.prepare(["theirs"])
    ours = world.of("ours")
    ours.task(ours.driver(), ["ours"])
    ours.clean()
    other.decide(theirs)
    other.commit()
    assert world.visible() == ["theirs"]


def test_a_zombie_of_a_committed_load_is_ended_while_nobody_else_has_its_slot(world: PooledWorld) -> None:
    world.writers_left = True
    ref = world.driver()
    accepted, copy = world.task(ref, ["a"]), world.task_id(ref)
    manifest = world.manifest(ref, [accepted])
    record_prepared(world.session, manifest, writers_left=True)
    world.decide(manifest)
    world.commit()
    world.write_arrow(copy, ["the copy, late"])
    assert len(world.open_ids()) == 1
    world.clean()
    assert (world.open_ids(), world.visible()) == ([], ["a"])


def test_what_a_writer_that_was_left_has_initialised_behind_its_commit_stops_nobody(
    world: PooledWorld, ledger_url: str
) -> None:
    world.writers_left = True
    (known,) = world.load_all(["a"]).transactions
    name = PooledId.parse(known.transactional_id)
    assert name is not None
    initialise(world.settings, name, world.timeout_ms, two_phase_commit=False, deadline_ms=10**13)
    end_quarantine(ledger_url, world)
    assert world.of("next").load_all(["b"]).attempt.slot == 0
    assert world.visible() == ["a", "b"]


def test_a_zombie_that_outlives_its_quarantine_is_found_and_said(world: PooledWorld, ledger_url: str) -> None:
    killed = world.of("killed")
    ref = killed.driver()
    late = killed.task_id(ref)
    killed.clean()
    end_quarantine(ledger_url, world)
    killed.write_arrow(late, ["late"])  # its deadline was not kept
    found = world.open_ids()
    assert found == [str(late)]
    with pytest.raises(InDoubtError, match="open as") as refused:
        world.of("next").open_attempt()
    assert refused.value.transactional_id == str(late)
    assert str(late) in refused.value.message
    # neither the next prepare, nor its cleanup, nor that of the killed attempt guesses
    with pytest.raises(InDoubtError, match="in doubt"):
        world.of("other").open_attempt()
    for one in (world.of("next"), killed):
        sweep(one.session, one.load, up_to=99, by=RUN)
    assert world.open_ids() == found
    # a person ends it, and says so
    described = world.session.coordinator.describe(found)[found[0]]
    world.session.coordinator.end(PreparedTransaction(found[0], described.state), Verdict.ABORT)
    assert world.session.ledger.settle_slot("test", world.load.name, 0)
    world.of("at last").load_all(["x"])
    assert world.visible() == ["x"]


def test_what_a_zombie_of_a_killed_attempt_begins_behind_cleanup_is_ended_before_its_slot_is_leased(
    world: PooledWorld, ledger_url: str
) -> None:
    """It kept its deadline, and the ledger knows whose it is: no person has to look."""
    killed = world.of("killed")
    late = killed.task_id(killed.driver())
    killed.clean()
    killed.write_arrow(late, ["late"])
    assert world.open_ids() == [str(late)]
    sql(
        ledger_url,
        "UPDATE kafka_eos_slots SET quarantined_until = :now WHERE load_name = :name",
        now=text_of(world.session.ledger.clock()),
        name=world.load.name,
    )
    assert world.of("next").load_all(["next"]).attempt.slot == 0
    assert (world.open_ids(), world.visible()) == ([], ["next"])


def test_a_ledger_of_yesterday_is_found_out_by_a_commit_that_it_does_not_know(
    world: PooledWorld, ledger_url: str
) -> None:
    manifest = world.load_all(["a"])
    # what a restored backup would have: the slot, and not the decision
    ids = [t.transactional_id for t in manifest.transactions]
    for name in ids:
        sql(ledger_url, "DELETE FROM kafka_eos_transactions WHERE transactional_id = :name", name=name)
    with pytest.raises(InDoubtError, match="ledger has not decided") as refused:
        world.of("next").open_attempt()
    assert ids[0] in refused.value.message


def test_a_commit_that_a_restored_ledger_has_forgotten_and_an_abort_hides_is_found_out(world: PooledWorld) -> None:
    """Leases behind the backup: one was committed, and the next one aborted by its timeout."""
    (known,) = world.load_all(["a"]).transactions
    name = PooledId.parse(known.transactional_id)
    assert name is not None
    for value, verdict in (("forgotten", Verdict.COMMIT), ("left open", Verdict.ABORT)):
        transaction, _ = world.write_arrow(name, [value])
        world.session.coordinator.end(transaction, verdict)
        wait_until(lambda: world.open_ids() == [], "its end")
    with pytest.raises(InDoubtError, match="has been used since") as refused:
        world.of("next").open_attempt()
    assert refused.value.transactional_id == known.transactional_id
    assert world.visible() == ["a", "forgotten"]


def test_an_open_transaction_that_a_restored_ledger_has_forgotten_is_not_aborted(
    world: PooledWorld, ledger_url: str
) -> None:
    """It may be decided to be committed, in the days that the ledger has lost."""
    manifest = world.prepare(["a"])
    (transaction,) = manifest.transactions
    for table, condition in (
        ("transactions", "transactional_id = :name"),
        ("slots", "load_name = :load"),
        ("attempts", "load_id = (SELECT id FROM kafka_eos_loads WHERE name = :load)"),
        ("loads", "name = :load"),
    ):
        values = {"name": transaction.transactional_id} if ":name" in condition else {"load": world.load.name}
        sql(ledger_url, f"DELETE FROM kafka_eos_{table} WHERE {condition}", **values)
    begin(world.session, world.load, owner=RUN)
    with pytest.raises(InDoubtError, match="open as"):
        submit(
            world.session, world.load, owner=RUN, naming=TransactionNaming.POOLING, deadline_ms=10**13
        )
    world.clean()
    assert world.open_ids() == [transaction.transactional_id]
    world.session.coordinator.end(transaction, Verdict.COMMIT)
    assert world.visible() == ["a"]


def test_what_is_open_under_a_slot_that_was_not_looked_at_yet_is_not_swept(
    world: PooledWorld, ledger_url: str
) -> None:
    """Killed between the lease and the look: what is open was there before."""
    world.load_all(["a"])
    (name,) = world.ids_on_broker()
    begin(world.session, world.of("next").load, owner=RUN)
    row = world.session.ledger.submit(
        world.of("next").load, owner=RUN, naming=TransactionNaming.POOLING, deadline_ms=10**13
    )
    assert row.slot == 0
    world.write_arrow(PooledId.parse(name), ["whose?"])  # type: ignore[arg-type]
    sweep(world.session, row.load, up_to=99, by=RUN)
    assert world.open_ids() == [name]


@pytest.mark.parametrize("writes", [False, True], ids=["leased", "written"])
def test_a_slot_that_was_given_back_between_lease_and_look_is_not_written_under(
    world: PooledWorld, writes: bool
) -> None:
    """A sweep of older attempts takes its time between the two, and somebody cleans up meanwhile."""
    slow, holder = world.of("slow"), world.of("holder")
    begin(world.session, slow.load, owner=RUN)
    row = world.session.ledger.submit(
        slow.load, owner=RUN, naming=TransactionNaming.POOLING, deadline_ms=10**13
    )
    slow.clean()
    ref = holder.driver()
    assert (row.slot, row.number) == (ref.slot, ref.attempt) == (0, 1)
    entries = [holder.task(ref, ["theirs"])] if writes else []
    with pytest.raises(UndecidableError, match=f"slot 0 was given back .*: it was aborted by {RUN} at") as refused:
        check_slot(world.session, row)
    assert (refused.value.load, refused.value.attempt) == (str(slow.load), 1)
    slot = world.slot()
    assert (slot.holder, slot.is_leased, slot.doubt) == (holder.load, True, None)
    manifest = holder.manifest(ref, entries or [holder.task(ref, ["theirs"])])
    record_prepared(world.session, manifest, writers_left=False)
    holder.decide(manifest)
    holder.commit()
    slow.load_all(["then"])
    assert (world.open_ids(), world.visible()) == ([], ["theirs", "then"])


def test_an_open_id_is_never_initialised_by_a_task(world: PooledWorld) -> None:
    ref = world.driver()
    name = world.task_id(ref)
    world.write_arrow(name, ["zombie"])
    # a driver that looks only now
    late = PooledWorld(world.session, world.settings, world.topic, world.load)
    from airflow_kafka_eos.spark.pooled import snapshot

    late.at_lease[ref] = snapshot(world.settings, ref)
    assert late.task_id(ref) != name
    assert world.open_ids() == [str(name)]


def test_decide_asks_the_brokers_clock_about_pooled_ids_too(world: PooledWorld) -> None:
    world.timeout_ms = 20_000
    manifest = world.prepare(["a"])
    with pytest.raises(UndecidableError, match="by its broker's clock"):
        world.decide(manifest, margin_s=60)


def test_another_application_s_transaction_in_our_topic_survives(world: PooledWorld) -> None:
    stranger = foreign_transaction(world, f"{world.load.name}.p0-0-0")
    ours = world.of("ours")
    ours.task(ours.driver(), ["ours"])
    ours.clean()
    stranger.commit_transaction(30)
    assert world.visible() == ["foreign"]


def test_the_oldest_brokers_too(ledger_url: str) -> None:
    """Kafka 3.9: transaction version 1, whose end leaves the epoch as it is, and a listing without patterns."""
    with LocalKafka(version="3.9.2") as old:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": old.bootstrap_servers})
        old.create_topic("t", partitions=2)
        load = LoadIdentity("test", f"pooled-{next(_names)}", "first")
        with connect(settings, ledger_url, "test") as session:
            world = PooledWorld(session, settings, "t", load)
            for key in ("a", "b"):
                world.of(key).load_all([f"{key}0"], [f"{key}1"])
                world.of(f"{key} shared").load_shared([f"{key}2"], [f"{key}3"])
            assert len(world.ids_on_broker()) == 3
            killed = world.of("killed")
            ref = killed.driver()
            first = killed.task(ref, ["never"])
            assert killed.task_id(ref) != first.transaction.transactional_id  # type: ignore[union-attr]
            killed.clean()
            end_quarantine(ledger_url, world)
            assert world.of("last").load_all(["x"]).attempt.slot == 0
            assert world.open_ids() == []
            assert world.visible() == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "x"]
            # one commit behind a backup, which has the epoch that version 2 would show of the last one
            (known,) = world.of("known").load_all(["y"]).transactions
            name = PooledId.parse(known.transactional_id)
            assert name is not None
            forgotten, _ = world.write_arrow(name, ["z"])
            assert forgotten.state.producer_epoch == known.state.producer_epoch + 1
            session.coordinator.end(forgotten, Verdict.COMMIT)
            wait_until(lambda: world.open_ids() == [], "its end")
            with pytest.raises(InDoubtError, match="ledger has not decided"):
                world.of("next").open_attempt()


def test_a_session_that_was_there_before_an_upgrade_knows_its_commits(ledger_url: str) -> None:
    with LocalKafka() as upgraded:
        finalize(upgraded.bootstrap_servers, 1)
        settings = KafkaSettings.from_mapping({"bootstrap.servers": upgraded.bootstrap_servers})
        with Wire(settings) as wire:
            wait_until(lambda: not wire.ends_raise_epochs(), "transaction version 1")
        upgraded.create_topic("t", partitions=1)
        load = LoadIdentity("test", f"pooled-{next(_names)}", "first")
        with connect(settings, ledger_url, "test") as before:
            world = PooledWorld(before, settings, "t", load)
            assert before.partitions.wire.transaction_version() == 1
            finalize(upgraded.bootstrap_servers, 2)
            wait_until(before.partitions.wire.ends_raise_epochs, "transaction version 2")
            with connect(settings, ledger_url, "test") as behind:
                PooledWorld(behind, settings, "t", load).of("a").load_all(["a"])
            assert world.of("b").load_all(["b"]).attempt.slot == 0


def test_a_refused_load_gives_its_slot_back_at_once(world: PooledWorld) -> None:
    manifest = world.prepare(["a"])
    world.session.ledger.decide_abort(manifest.attempt, decided_by=RUN, reason="refused")
    world.clean()
    assert world.session.ledger.load(world.load).state is LoadState.ABORTED  # type: ignore[union-attr]
    assert world.of("b").load_all(["b"]).attempt.slot == 0
    assert reference(world.session, world.session.ledger.attempts(world.load)[0]).slot == 0
