"""Where writing past a coordinator could contradict one, touch another load, or overlook what hangs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_kafka_eos.errors import BrokerUnavailableError, InDoubtError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.open_producers import write_marker
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.protocol import forgotten_markers, hanging
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.evidence import evidence
from airflow_kafka_eos.protocol.forgotten_markers import end_forgotten
from airflow_kafka_eos.protocol.guards.coordinator_watch import finished
from airflow_kafka_eos.protocol.repair.recover import give_up
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.transaction import Marker, PreparedTransaction, TopicPartition, TransactionDescription
from airflow_kafka_eos.triggers import CleanupTrigger
from tests.kafka.open_transactions import wait_until
from tests.protocol.forgetful import decide_anyway, end, prepare_forgotten, shown, sweep_it, write_forgotten
from tests.protocol.late import produce_late
from tests.protocol.lost import state
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker


@pytest.fixture
def here(lax_world: World) -> World:
    return lax_world


def beside(world: World, key: str) -> World:
    """Another load on the same topic."""
    return replace(world, load=replace(world.load, key=f"{world.load.key} {key}"))


def is_closed(world: World) -> bool:
    return world.session.ledger.attempts(world.load)[-1].closed_at is not None


class Stale(Coordinator):
    """As asked of a broker that was the coordinator, or never was, and does not know who is."""

    def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
        return {}


def stale(world: World, wire: Wire) -> Any:
    session = world.session
    return replace(session, coordinator=Stale(wire, namespace=session.namespace, ledger_id=session.ledger.ledger_id))


def test_one_broker_that_knows_no_such_id_is_not_believed(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has it open: its markers may follow, and would contradict ours."""
    manifest = prepare_forgotten(here, "ab", known=[0, 1])
    decide_anyway(here, manifest)
    row = here.session.ledger.attempts(here.load)[-1]
    every = here.session.ledger.transactions(here.load, row.number)
    monkeypatch.setattr(forgotten_markers, "write_marker", lambda *_: pytest.fail("a marker past its coordinator"))
    with Wire(here.settings, timeout_s=30) as wire:
        assert end_forgotten(stale(here, wire), row, every) == []
        assert hanging.find(stale(here, wire), [TopicPartition(here.topic, 0)], longer_than_ms=0) == []
    here.commit()
    assert here.visible() == ["a", "b"]


def test_nothing_is_over_while_a_coordinator_moves(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = prepare_forgotten(here, "ab", known=[2])
    transaction = end(here, manifest, Verdict.ABORT)
    name = transaction.transactional_id
    assert set(finished(here.session, [name])) == {name}
    with monkeypatch.context() as patched:
        places = iter([{"a": 1}, {"a": 2}])
        patched.setattr(here.session.coordinator, "epochs", lambda: next(places))
        assert finished(here.session, [name]) == {}
    monkeypatch.setattr(here.session.coordinator, "epochs", lambda: None)
    assert finished(here.session, [name]) == {}


def test_a_cleanup_ends_nothing_of_another_load_that_was_given_up(here: World) -> None:
    other = beside(here, "given up")
    manifest = prepare_forgotten(other, "ab", known=[0, 2])
    decide_anyway(other, manifest)
    transaction = end(other, manifest, Verdict.COMMIT)
    give_up(other.session, other.load, by="alice", reason="loaded by hand")
    end(here, prepare_forgotten(here, "xy", known=[0, 2]), Verdict.ABORT)
    assert sweep_it(here) is None
    (row,) = other.session.ledger.transactions(other.load, 1)
    assert [p.partition.partition for p in shown(other, transaction)] == [1]
    assert list(evidence(other.session, row).values()) == [Marker.COMMIT, Marker.MISSING]
    # nor does its own, nor maintenance: only a person does
    sweep_it(other)
    hanging.end_ours(other.session, hanging.of_the_ledger(other.session))
    assert [p.partition.partition for p in shown(other, transaction)] == [1]


def test_what_hangs_of_a_load_that_was_given_up_keeps_it_open_and_is_named_until_a_person_ends_it(here: World) -> None:
    """No coordinator shows it: asked of them alone, cleanup would call it clean, and readers would wait for ever."""
    manifest = prepare_forgotten(here, "ab", known=[0, 2])
    decide_anyway(here, manifest)
    transaction = end(here, manifest, Verdict.COMMIT)
    give_up(here.session, here.load, by="alice", reason="loaded by hand")
    problem = sweep_it(here)
    assert isinstance(problem, InDoubtError) and f"{here.topic}-1" in problem.message
    options = f"--topic {here.topic} --running-longer-than 0s --namespace test --abort"
    assert f"`airflow-kafka-eos transactions hanging {options}`" in problem.remedy
    assert not is_closed(here)
    (found,) = hanging.find(here.session, [TopicPartition(here.topic, 1)], longer_than_ms=0)
    hanging.abort(here.session, found)
    assert (sweep_it(here), is_closed(here), shown(here, transaction)) == (None, True, [])


def test_nor_of_newer_attempts_of_its_own(here: World) -> None:
    manifest = prepare_forgotten(here, "ab", known=[2])
    transaction = end(here, manifest, Verdict.ABORT)
    here.session.ledger.decide_abort(manifest.attempt, decided_by=RUN, reason="refused")
    places = [TopicPartition(here.topic, n) for n in range(2)]
    assert hanging.end_ours(here.session, places, here.load, up_to=0) == []
    assert len(shown(here, transaction)) == 2
    assert len(hanging.end_ours(here.session, places, here.load, up_to=1)) == 2


def test_maintenance_finds_what_no_cleanup_knows_of(here: World) -> None:
    manifest = prepare_forgotten(here, "ab", known=[2])
    transaction = end(here, manifest, Verdict.ABORT)
    here.session.ledger.decide_abort(manifest.attempt, decided_by=RUN, reason="refused")
    everywhere = hanging.of_the_ledger(here.session)
    assert hanging.end_ours(here.session, everywhere, longer_than_ms=None) == []  # a young one is its coordinator's
    assert len(shown(here, transaction)) == 2
    ended = [h for h in hanging.end_ours(here.session, everywhere) if h.attempt and h.attempt.load == here.load]
    assert (len(ended), shown(here, transaction)) == (2, [])


def abort_under(world: World) -> tuple[PreparedTransaction, CleanPoll]:
    """An attempt that has reported nothing, and a poll that has not looked yet."""
    ref = reference(world.session, world.open_attempt())
    return write_forgotten(world, ref, "ab", known=[0, 1]), CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)


def hang_again(world: World, transaction: PreparedTransaction) -> None:
    """On transaction version 1 a late record opens it again, unknown to its coordinator."""
    wait_until(lambda: not world.open_ids(), "the coordinator's end")
    produce_late(world.settings, transaction, TopicPartition(world.topic, 0), "late", 1)


def drain(world: World, poll: CleanPoll) -> None:
    give_up_at = time.monotonic() + 30
    while poll(world.session) is not None:
        assert time.monotonic() < give_up_at


def test_what_was_aborted_is_remembered_though_the_broker_never_answered(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed: just then it forgets."""
    transaction, poll = abort_under(here)
    real = here.session.coordinator.end_many

    def unanswered(*arguments: Any) -> None:
        real(*arguments)
        raise BrokerUnavailableError("killed before it answered")

    with monkeypatch.context() as patched:
        patched.setattr(here.session.coordinator, "end_many", unanswered)
        with pytest.raises(BrokerUnavailableError):
            poll(here.session)
    hang_again(here, transaction)
    drain(here, poll)
    assert (shown(here, transaction), is_closed(here)) == ([], True)


def test_what_was_aborted_is_handed_over_to_the_trigger(here: World) -> None:
    transaction, poll = abort_under(here)
    assert poll(here.session) is not None  # the sensor's look, then it defers
    hang_again(here, transaction)
    names = {"namespace": "test", "load_name": here.load.name, "load_key": here.load.key}
    fields = names | {"kafka_conn_id": "k", "ledger_conn_id": None, "poll_s": 1.0}
    # what a person reads of it is whole, too
    assert poll.aborted == [transaction.transactional_id]
    trigger = CleanupTrigger(**fields, owner=RUN, up_to=9, quiet_s=0, partitions=poll.partitions, aborted=poll.aborted)
    again = CleanupTrigger(**trigger.serialize()[1]).new_poll()
    assert isinstance(again, CleanPoll)
    assert again.summary()["aborted"] == poll.aborted
    drain(here, again)
    assert (shown(here, transaction), is_closed(here)) == ([], True)


def test_records_dated_in_the_future_hang_too(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = prepare_forgotten(here, "ab", known=[0, 2])
    transaction = end(here, manifest, Verdict.ABORT)
    late = SimpleNamespace(time=lambda: time.time() - 60, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(hanging, "time", late)
    assert sweep_it(here) is None
    assert (shown(here, transaction), is_closed(here)) == ([], True)


def test_a_leader_that_refuses_the_epoch_is_looked_at_again(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A marker with the next epoch came first: on transaction version 2 the coordinator's own."""
    manifest = prepare_forgotten(here, "ab", known=[2])
    decide_anyway(here, manifest)
    end(here, manifest, Verdict.COMMIT)
    real = write_marker
    raced: list[Any] = []

    def write(wire: Any, producer: Any, verdict: Verdict) -> bool:
        if not raced:
            raced.append(producer)
            assert real(wire, producer._replace(producer_epoch=producer.producer_epoch + 1), verdict)
            assert not real(wire, producer, verdict)
            return False
        return real(wire, producer, verdict)

    monkeypatch.setattr(forgotten_markers, "write_marker", write)
    here.commit()
    assert (state(here), here.visible()) == (LoadState.COMMITTED, ["a", "b"])
