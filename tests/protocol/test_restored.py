"""A ledger restored from yesterday's backup: the broker knows more, and nothing is guessed or ended."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import BrokerUnavailableError, InDoubtError
from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.protocol.opening import begin, reference, submit
from airflow_kafka_eos.protocol.polling import CleanPoll
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.sweeping import sweep
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
    database = own.session.ledger._database
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
        with pytest.raises(InDoubtError, match="has opened 1 attempts") as caught:
            work()
        assert caught.value.transactional_id == name.transactional_id
    assert own.open_ids() == [name.transactional_id]
    old.ledger.close()


def test_a_load_that_began_after_the_backup_is_not_taken_for_a_new_one(own: World, tmp_path: Path) -> None:
    checkpoint(own)
    backup(tmp_path)
    own.write(reference(own.session, own.open_attempt()), ["a"])
    old = restored(own, tmp_path)
    with pytest.raises(InDoubtError, match="has opened 0 attempts"):
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


class Mute(Coordinator):
    """Brokers that are away just when older attempts are swept."""

    def places(self) -> None:
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
