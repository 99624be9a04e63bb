"""A ledger restored from yesterday's backup: the broker knows more, and nothing is guessed or ended."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from airflow_kafka_eos.errors import BrokerUnavailableError, InDoubtError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger import tables
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.slots import LONGEST_REQUEST_DELAY, text_of
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import PooledId
from airflow_kafka_eos.protocol.cleanup import sweep as sweeping
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.two_phase_commit.recipe import init_transactions
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker


@pytest.fixture
def own(world: World, tmp_path: Path) -> Iterator[World]:
    """A world with a ledger file of its own, and that file at ``ledger.db``."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with connect(world.settings, url, "test") as session:
        yield replace(world, session=session)


def backup(folder: Path) -> None:
    shutil.copy(folder / "ledger.db", folder / "backup.db")


def restored(own: World, folder: Path) -> Session:
    """The same session on the backup."""
    return replace(own.session, ledger=Ledger.open(f"sqlite:///{folder}/backup.db"))


def checkpoint(own: World) -> None:
    database = own.session.ledger.database
    database.read(lambda c: None)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")


def test_a_commit_that_the_ledger_does_not_know_stops_begin_and_nothing_is_loaded_twice(
    own: World, tmp_path: Path
) -> None:
    begin(own.session, own.load, owner=RUN)
    checkpoint(own)
    backup(tmp_path)
    own.load_all(["a"])
    old = restored(own, tmp_path)
    with pytest.raises(InDoubtError, match=r"knows no decision to commit.*new-id") as caught:
        begin(old, own.load, owner=RUN)
    assert caught.value.load == str(own.load)
    assert [row.verdict for row in old.ledger.attempts(own.load)] == [None]  # nothing is opened or decided
    # a load that was begun after the backup is as unknown
    with pytest.raises(InDoubtError, match="knows no decision"):
        begin(old, own.load, owner="dag/another")
    old.ledger.close()


def test_attempts_that_the_ledger_has_not_opened_are_not_ended(own: World, tmp_path: Path) -> None:
    own.open_attempt()
    checkpoint(own)
    backup(tmp_path)
    second = reference(own.session, submit(own.session, own.load, owner=RUN))
    name = own.write(second, ["a"]).transaction
    assert name is not None
    old = restored(own, tmp_path)
    for work in (
        lambda: sweep(old, own.load, up_to=9, by=RUN),
        lambda: CleanPoll(own.load, up_to=9, by=RUN, quiet_s=0)(old),
        lambda: begin(old, own.load, owner=RUN),
    ):
        with pytest.raises(InDoubtError, match="has given 1 attempts") as caught:
            work()
        assert caught.value.transactional_id == name.transactional_id
    assert own.open_ids() == [name.transactional_id]
    old.ledger.close()


@pytest.mark.parametrize("so_far", ["begun", "submitted", "prepared", "aborted"])
def test_what_is_committed_in_part_and_was_undecided_in_the_backup_is_not_ended(
    own: World, tmp_path: Path, so_far: str
) -> None:
    """Decided behind the backup, and told to Kafka in part: what is open of it is a part of that decision."""

    def save(moment: str) -> None:
        if moment == so_far:
            checkpoint(own)
            backup(tmp_path)

    begin(own.session, own.load, owner=RUN)
    save("begun")
    ref = reference(own.session, submit(own.session, own.load, owner=RUN))
    save("submitted")
    made = own.manifest(ref, [own.write(ref, [value], n) for n, value in enumerate("ab")])
    record_prepared(own.session, made)
    save("prepared")
    save("aborted")
    own.decide(made)
    own.session.coordinator.end_many(made.transactions[:1], Verdict.COMMIT)
    old = restored(own, tmp_path)
    if so_far == "aborted":  # by who has asked nobody
        old.ledger.make_undecidable(own.load, up_to=1, decided_by=RUN, reason="test")
    before = old.ledger.attempts(own.load)
    left = made.transactions[1].transactional_id
    for work in (
        lambda: sweep(old, own.load, up_to=1, by=RUN),
        lambda: CleanPoll(own.load, up_to=1, by=RUN, quiet_s=0)(old),
        lambda: force_terminate(old, left, by=RUN, reason="it holds readers back"),
        lambda: init_transactions(old, left, keep_prepared=False, by=RUN),
    ):
        with pytest.raises(InDoubtError, match=r"(knows no decision to commit|has given 0 attempts).*loads reinstate"):
            work()
    assert old.ledger.attempts(own.load) == before
    assert own.open_ids() == [left]
    old.ledger.close()
    own.commit()
    assert own.visible() == ["a", "b"]


def without_its_decision(own: World, folder: Path) -> tuple[Manifest, Session]:
    """Prepared, and decided behind the backup, and told to Kafka in part: its manifest, and the backup's session."""
    made = own.prepare(["a"], ["b"])
    checkpoint(own)
    backup(folder)
    own.decide(made)
    own.session.coordinator.end_many(made.transactions[:1], Verdict.COMMIT)
    return made, restored(own, folder)


def test_a_retry_of_prepare_and_decide_stop_where_the_ledger_has_lost_their_decision(
    own: World, tmp_path: Path
) -> None:
    """A failover that loses the last commits: begin has run long ago, and nobody has stopped the DAG."""
    made, old = without_its_decision(own, tmp_path)
    before = old.ledger.attempts(own.load)
    works: tuple[Callable[[], object], ...] = (
        lambda: submit(old, own.load, owner=RUN),
        lambda: decide(old, made, Conditions(), owner=RUN, margin_s=1),
    )
    for work in works:
        with pytest.raises(InDoubtError, match="knows no decision to commit"):
            work()
        assert old.ledger.attempts(own.load) == before, "nothing is superseded, nothing aborted"
    assert own.open_ids() == [made.transactions[1].transactional_id]
    old.ledger.close()


@pytest.mark.parametrize("end", [True, False])
def test_decide_decides_nothing_beside_a_commit_that_the_ledger_has_forgotten(
    own: World, tmp_path: Path, end: bool
) -> None:
    """A driver that was superseded in what the ledger has lost writes late; there the next attempt was decided."""
    first = reference(own.session, own.open_attempt())
    checkpoint(own)
    backup(tmp_path)
    second = reference(own.session, submit(own.session, own.load, owner=RUN))
    newer = own.manifest(second, [own.write(second, ["a"])])
    record_prepared(own.session, newer)
    own.decide(newer)
    if end:
        own.commit()
    late = own.manifest(first, [own.write(first, ["a"])])
    old = restored(own, tmp_path)
    record_prepared(old, late)
    with pytest.raises(InDoubtError, match=r"knows no decision|has given 1 attempts"):
        decide(old, late, Conditions(), owner=RUN, margin_s=1)
    assert [row.verdict for row in old.ledger.attempts(own.load)] == [None]
    old.ledger.close()
    own.commit()
    assert own.visible() == ["a"]


def test_an_attempt_that_was_not_submitted_in_the_backup_is_not_written_once_more(own: World, tmp_path: Path) -> None:
    """Under the ids that it would have, its commit is shown no more once they are initialised."""
    begin(own.session, own.load, owner=RUN)
    checkpoint(own)
    backup(tmp_path)
    own.load_all(["a"])
    old = restored(own, tmp_path)
    with pytest.raises(InDoubtError, match="knows no decision"):
        submit(old, own.load, owner=RUN)
    assert [row.is_submitted for row in old.ledger.attempts(own.load)] == [False]
    old.ledger.close()


def test_what_an_attempt_has_open_that_was_only_begun_in_the_backup_is_not_ended(own: World, tmp_path: Path) -> None:
    """Nor are its ids used again: that would end it, too."""
    begin(own.session, own.load, owner=RUN)
    checkpoint(own)
    backup(tmp_path)
    made = own.prepare(["a"])
    old = restored(own, tmp_path)
    for work in (
        lambda: begin(old, own.load, owner=RUN),
        lambda: submit(old, own.load, owner=RUN),
        lambda: sweep(old, own.load, up_to=1, by=RUN),
    ):
        with pytest.raises(InDoubtError, match="has given 0 attempts"):
            work()
    assert [(row.verdict, row.is_submitted) for row in old.ledger.attempts(own.load)] == [(None, False)]
    old.ledger.close()
    own.decide(made)
    own.commit()
    assert own.visible() == ["a"]


def test_a_commit_that_a_moving_coordinator_hides_from_its_listing_is_asked_for_by_name(
    own: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, old = without_its_decision(own, tmp_path)
    monkeypatch.setattr(Coordinator, "list_states", lambda self, prefix: [])
    with pytest.raises(InDoubtError, match="knows no decision to commit"):
        sweep(old, own.load, up_to=1, by=RUN)
    assert [row.verdict for row in old.ledger.attempts(own.load)] == [None]
    old.ledger.close()


def test_a_load_that_began_after_the_backup_is_not_taken_for_a_new_one(own: World, tmp_path: Path) -> None:
    checkpoint(own)
    backup(tmp_path)
    own.write(reference(own.session, own.open_attempt()), ["a"])
    old = restored(own, tmp_path)
    with pytest.raises(InDoubtError, match="has given 0 attempts"):
        begin(old, own.load, owner=RUN)
    assert old.ledger.attempts(own.load) == []
    old.ledger.close()


def test_under_a_new_id_the_ledger_goes_on_and_leaves_the_old_ones_alone(own: World, tmp_path: Path) -> None:
    own.open_attempt()
    checkpoint(own)
    backup(tmp_path)
    second = reference(own.session, submit(own.session, own.load, owner=RUN))
    left = own.write(second, ["lost history"]).transaction
    old = restored(own, tmp_path)
    old.ledger.new_id(decided_by="a person")
    old.ledger.close()
    with connect(own.settings, f"sqlite:///{tmp_path}/backup.db", "test") as session:
        renewed = replace(own, session=session)
        manifest = renewed.prepare(["b"])
        renewed.decide(manifest)
        renewed.commit()
        poll = CleanPoll(own.load, up_to=9, by=RUN, quiet_s=0)
        while poll(session) is not None:
            pass
        assert left is not None and own.open_ids() == [left.transactional_id]
    own.session.coordinator.end(left, Verdict.ABORT)
    assert own.visible() == ["b"]


def test_what_a_ledger_knows_stops_nobody(own: World) -> None:
    """An abort by hand, an own commit, another load's commit."""
    manifest = own.prepare(["a"])
    own.session.coordinator.end(manifest.transactions[0], Verdict.ABORT)
    assert begin(own.session, own.load, owner=RUN).number == 1
    submit(own.session, own.load, owner=RUN)
    own.load_all(["a"])
    begin(own.session, own.load, owner=RUN)
    other = LoadIdentity(own.load.namespace, own.load.name, own.load.key + "x")
    assert begin(own.session, other, owner=RUN).number == 1


@pytest.fixture
def pooled(own: World) -> PooledWorld:
    return PooledWorld(own.session, own.settings, own.topic, own.load)


def backup_while_a_slot_is_leased(pooled: PooledWorld, folder: Path) -> PooledWorld:
    """Its holder, which was then swept: another load may have the slot."""
    holder = pooled.of("holder")
    ref = holder.driver()
    checkpoint(pooled)
    backup(folder)
    record_prepared(holder.session, holder.manifest(ref, [holder.task(ref, ["refused"])]), writers_left=False)
    holder.session.ledger.decide_abort(ref, decided_by=RUN, reason="refused")
    holder.clean()
    return holder


def test_a_pooled_load_that_the_ledger_has_forgotten_is_not_written_twice(pooled: PooledWorld, tmp_path: Path) -> None:
    backup_while_a_slot_is_leased(pooled, tmp_path)
    pooled.of("b").load_all(["b"])
    old = replace(pooled, session=restored(pooled, tmp_path))
    for naming in TransactionNaming:
        again = old.of("b")
        again.naming = naming
        with pytest.raises(InDoubtError, match=r"has not decided what the broker shows.*new-id.*ids settle") as caught:
            again.open_attempt()
        assert caught.value.transactional_id in pooled.ids_on_broker()
        assert old.session.ledger.attempts(again.load) == []
    assert old.slot().doubt is not None
    # a person has compared
    old.session.ledger.settle_slot("test", old.load.name, 0)
    assert old.of("c").load_all(["c"]).attempt.slot == 1
    assert pooled.visible() == ["b", "c"]
    old.session.ledger.close()


def test_what_is_open_under_a_slot_is_not_ended_while_one_of_the_name_s_shows_an_unknown_commit(
    pooled: PooledWorld, tmp_path: Path
) -> None:
    """The slot's holder in the backup is not who holds it: that one is decided, and forgotten."""
    holder = backup_while_a_slot_is_leased(pooled, tmp_path)
    pooled.of("b").load_all(["b0"], ["b1"])
    decided = pooled.of("c").prepare(["c"])
    assert decided.attempt.slot == 0
    pooled.of("c").decide(decided)
    old = restored(pooled, tmp_path)
    with pytest.raises(InDoubtError, match="has not decided what the broker shows"):
        sweep(old, holder.load, up_to=9, by=RUN)
    assert [row.verdict for row in old.ledger.attempts(holder.load)] == [None]
    old.ledger.close()
    pooled.of("c").commit()
    assert pooled.visible() == ["b0", "b1", "c"]


def test_nor_where_the_slot_s_holder_is_decided_and_cannot_be_rolled_forward_now(
    pooled: PooledWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the slot for as long, and what is open under it is none of its decision."""
    holder = pooled.of("holder")
    holder.decide(holder.prepare(["h"]))
    checkpoint(pooled)
    backup(tmp_path)
    holder.commit()
    pooled.of("b").load_all(["b0"], ["b1"])
    decided = pooled.of("c").prepare(["c"])
    assert decided.attempt.slot == 0
    pooled.of("c").decide(decided)

    def down(*_: object, **__: object) -> None:
        raise BrokerUnavailableError("no leader answers")

    monkeypatch.setattr(sweeping, "commit_pass", down)
    old = restored(pooled, tmp_path)
    with pytest.raises(InDoubtError, match="has not decided what the broker shows"):
        sweep(old, holder.load, up_to=9, by=RUN)
    old.ledger.close()
    assert pooled.open_ids() == [decided.transactions[0].transactional_id]
    pooled.of("c").commit()
    assert pooled.visible() == ["b0", "b1", "c", "h"]


@pytest.mark.parametrize("so_far", ["undecided", "decided", "committed"])
def test_nor_is_it_force_terminated_whatever_the_slot_s_holder_came_to(
    pooled: PooledWorld, tmp_path: Path, so_far: str
) -> None:
    """It is a part of a forgotten load that is committed in part."""
    holder = pooled.of("holder")

    def save(moment: str) -> None:
        if moment == so_far:
            checkpoint(pooled)
            backup(tmp_path)

    manifest = holder.prepare(["h"])
    save("undecided")
    holder.decide(manifest)
    save("decided")
    holder.commit()
    save("committed")
    forgotten = pooled.of("forgotten")
    made = forgotten.prepare(["a"], ["b"])
    assert made.attempt.slot == 0
    forgotten.decide(made)
    pooled.session.coordinator.end_many(made.transactions[:1], Verdict.COMMIT)
    old = restored(pooled, tmp_path)
    before = old.ledger.attempts(holder.load)
    left = made.transactions[1].transactional_id
    with pytest.raises(InDoubtError, match=r"has not decided what the broker shows.*under slots"):
        force_terminate(old, left, by=RUN, reason="it holds readers back")
    assert old.ledger.attempts(holder.load) == before
    assert pooled.open_ids() == [left]
    old.ledger.close()
    forgotten.commit()
    assert pooled.visible() == ["a", "b", "h"]


def test_what_a_slot_s_holder_cannot_have_begun_any_more_is_not_ended_as_its(
    pooled: PooledWorld, tmp_path: Path
) -> None:
    holder = backup_while_a_slot_is_leased(pooled, tmp_path)
    decided = pooled.of("c").prepare(["c"])
    old = restored(pooled, tmp_path)
    long_ago = datetime.now(UTC) - LONGEST_REQUEST_DELAY - timedelta(minutes=1)
    old.ledger.database.write(lambda c: c.execute(update(tables.attempts).values(writers_until=text_of(long_ago))))
    CleanPoll(holder.load, up_to=9, by=RUN, quiet_s=0)(old)
    old.ledger.close()
    pooled.of("c").decide(decided)
    pooled.of("c").commit()
    assert pooled.visible() == ["c"]


def test_under_a_new_id_nothing_of_the_old_one_s_slots_is_looked_at(pooled: PooledWorld, tmp_path: Path) -> None:
    manifest = pooled.load_all(["a"])
    (name,) = pooled.ids_on_broker()
    pooled.write_arrow(PooledId.parse(name), ["whose?"])  # type: ignore[arg-type]
    pooled.session.ledger.new_id(decided_by="a person")
    with connect(pooled.settings, f"sqlite:///{tmp_path}/ledger.db", "test") as session:
        renewed = replace(pooled, session=session)
        assert renewed.of("b").open_attempt().slot == manifest.attempt.slot == 0
    assert pooled.open_ids() == [name]


def test_a_begin_of_a_load_that_is_known_to_be_committed_asks_for_no_commits(own: World) -> None:
    own.load_all(["a"])
    with Wire(own.settings, timeout_s=60) as wire:
        frugal = Frugal(wire, namespace="test", ledger_id=own.session.ledger.ledger_id)
        assert begin(replace(own.session, coordinator=frugal), own.load, owner=RUN).verdict is Verdict.COMMIT


class Frugal(Coordinator):
    def list_committed(self, prefix: str) -> list[str]:
        raise AssertionError("before Kafka 4.1 brokers answer with every application's")


class Mute(Coordinator):
    """Brokers that are away just when older attempts are swept."""

    def list_open(self, prefix: str, *, longer_than_ms: int = -1) -> list[str]:
        raise BrokerUnavailableError("no broker answers")


def test_begin_leaves_what_it_cannot_sweep_to_prepare_and_cleanup(world: World, settings: KafkaSettings) -> None:
    """A begin that fails for good has no cleanup: its teardown runs only behind a setup that succeeded."""
    world.write(reference(world.session, world.open_attempt()), ["left"])
    with Wire(settings, timeout_s=60) as wire:
        mute = Mute(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        assert begin(replace(world.session, coordinator=mute), world.load, owner=RUN).number == 2
    assert len(world.open_ids()) == 1
    submit(world.session, world.load, owner=RUN)
    poll = CleanPoll(world.load, up_to=2, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    assert world.open_ids() == []
