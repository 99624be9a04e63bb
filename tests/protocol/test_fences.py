"""Whoever makes an attempt undecidable moves its fence, before it looks for what is open.

Its writers see Kafka alone (Spark Connect); rule: writers-have-a-deadline.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from airflow_kafka_eos.errors import BrokerUnavailableError, ConfigurationError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.protocol import fences
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTxnState
from tests.kafka.open_transactions import wait_until
from tests.protocol.world import RUN, World


def stand(world: World, ref: AttemptRef) -> PreparedTxnState | str:
    """As its client does it."""
    ledger = world.session.ledger
    return fences.stand(world.settings, ref, 2**62, lambda: fences.why_over(ledger.attempt(ref.load, ref.attempt)))


def stands_at(world: World, ref: AttemptRef) -> PreparedTxnState | None:
    name = str(ref.common_id(IdRole.PROBE))
    found = world.session.coordinator.describe([name]).get(name)
    return None if found is None else found.state


def opened(world: World) -> AttemptRef:
    begin(world.session, world.load, owner=RUN)
    return reference(world.session, submit(world.session, world.load, owner=RUN, has_fence=True))


def killed(world: World) -> tuple[AttemptRef, PreparedTxnState]:
    """An attempt whose client has died behind its fence."""
    ref = opened(world)
    stood = stand(world, ref)
    assert isinstance(stood, PreparedTxnState)
    return ref, stood


class Cleanup:
    """As it waits for a quiet load, by a clock that goes when it is told to."""

    def __init__(self, world: World, ref: AttemptRef, quiet_s: float = 0) -> None:
        self.now = 0.0
        self.poll = CleanPoll(
            world.load, up_to=ref.attempt, by=RUN, quiet_s=quiet_s, clock=lambda: self.now, pause=self.wait
        )
        self._world = world

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def look(self) -> str | None:
        return self.poll(self._world.session)

    def finish(self) -> float:
        """:returns: seconds that it has taken."""
        for _ in range(1000):
            if self.look() is None:
                return self.now
            self.wait(0.5)
        raise AssertionError("it waits for ever")


def test_begin_and_prepare_and_cleanup_move_it(world: World) -> None:
    ref, stood = killed(world)
    assert stands_at(world, ref) == stood
    begin(world.session, world.load, owner=RUN)
    assert stands_at(world, ref) not in (None, stood)
    for by_cleanup in (False, True):
        ref, stood = killed(world)
        if by_cleanup:
            Cleanup(world, ref).finish()
        else:
            submit(world.session, world.load, owner=RUN)  # a retry
        assert stands_at(world, ref) not in (None, stood)


def test_a_client_that_puts_it_up_behind_that_is_told_by_the_ledger(world: World) -> None:
    """It sees no note: the other has another folder. Its fence was not there to be moved."""
    ref = opened(world)
    sweep(world.session, world.load, up_to=ref.attempt, by="another run")
    assert stands_at(world, ref) is None, "none is made where there was none"
    assert str(stand(world, ref)).startswith("decided by another run at ")


class LateWriter(Coordinator):
    """A task has looked at the fence, and begins just before it is moved."""

    world: World
    ref: AttemptRef

    def init_producer_id(self, transactional_id: str, timeout_ms: int, **more: object) -> PreparedTxnState:
        if transactional_id.endswith("-probe"):
            self.world.write(self.ref, ["late"])
        return super().init_producer_id(transactional_id, timeout_ms, **more)  # type: ignore[arg-type]


def test_what_begins_before_it_moves_is_swept_by_the_same_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where cleanup waits for nothing: its quiet period is 0."""
    ref, _ = killed(world)
    monkeypatch.setattr(world.session.coordinator, "__class__", LateWriter)
    monkeypatch.setattr(world.session.coordinator, "world", world, raising=False)
    monkeypatch.setattr(world.session.coordinator, "ref", ref, raising=False)
    report = sweep(world.session, world.load, up_to=ref.attempt, by=RUN)
    assert len(report.aborted) == 1
    wait_until(lambda: world.open_ids() == [], "the end of it")
    assert world.visible() == []


def test_a_broker_that_is_away_keeps_the_attempt_from_being_called_swept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, stood = killed(world)
    left = world.write(ref, ["a"])
    with monkeypatch.context() as patch:

        def away(*_: object, **__: object) -> None:
            raise BrokerUnavailableError("nobody answers")

        patch.setattr(world.session.coordinator, "init_producer_id", away)
        cleanup = Cleanup(world, ref)
        with pytest.raises(BrokerUnavailableError):
            cleanup.look()
    assert left.transaction is not None
    wait_until(lambda: world.open_ids() == [], "the end of it all the same")
    assert world.session.ledger.attempts(world.load)[-1].closed_at is None
    cleanup.finish()
    assert stands_at(world, ref) != stood


def test_it_is_moved_once_however_often_somebody_looks(world: World) -> None:
    ref, _ = killed(world)
    poll = CleanPoll(world.load, up_to=ref.attempt, by=RUN, quiet_s=30)
    assert poll(world.session) is not None
    moved = stands_at(world, ref)
    for _ in range(2):
        poll(world.session)
    assert stands_at(world, ref) == moved


def test_a_client_whose_fence_nobody_would_move_does_not_begin(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    assert stand(world, ref) == "the ledger does not know that it has a fence"


def test_an_attempt_of_a_slot_can_have_none(world: World) -> None:
    """Its probe is the slot's: somebody else's by now."""
    begin(world.session, world.load, owner=RUN)
    row = submit(world.session, world.load, owner=RUN, naming=TransactionNaming.POOLING, deadline_ms=2**41)
    of_slot = reference(world.session, row)
    assert of_slot.slot is not None
    with pytest.raises(ConfigurationError, match="pooled transactional ids has no fence of its own"):
        stand(world, of_slot)


def test_other_loads_ids_are_not_asked_about_nor_initialised(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for two-phase commit has a probe, too: that is no fence."""
    ref = reference(world.session, world.open_attempt())
    world.session.coordinator.init_producer_id(str(ref.common_id(IdRole.PROBE)), 1000)
    stood = stands_at(world, ref)
    world.write(ref, ["a"])
    asked: list[str] = []
    describe = Coordinator.describe

    def seen(self: Coordinator, ids: Iterable[str]) -> object:
        wanted = list(ids)
        asked.extend(wanted)
        return describe(self, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "describe", seen)
        waited = Cleanup(world, ref).finish()
    assert waited < fences.QUIET_S
    assert stands_at(world, ref) == stood
    assert asked and str(ref.common_id(IdRole.PROBE)) not in asked


def test_a_broker_that_lets_no_transaction_stay_open_for_long_takes_it() -> None:
    with LocalKafka(version="4.4.0", broker_settings={"transaction.max.timeout.ms": "30000"}) as kafka:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        ref = AttemptRef(LoadIdentity("test", "orders", "short"), "0" * 10, 1)
        stood = fences.stand(settings, ref, 2**62, lambda: None)
        assert isinstance(stood, PreparedTxnState) and stood.producer_id >= 0


# -- how long is waited behind it --------------------------------------------------------------------------------------


def prepared(world: World, *, writers_left: bool) -> tuple[AttemptRef, PreparedTxnState]:
    """One that has reported; its server lives on."""
    ref, stood = killed(world)
    manifest = world.manifest(ref, [world.write(ref, ["a"])])
    record_prepared(world.session, manifest, writers_left=writers_left)
    world.decide(manifest)
    return ref, stood


def committed(world: World, *, writers_left: bool) -> tuple[AttemptRef, PreparedTxnState]:
    found = prepared(world, writers_left=writers_left)
    world.commit()
    assert world.session.ledger.attempts(world.load)[-1].closed_at is not None
    return found


@pytest.mark.parametrize("quiet_s", [0, 3, 30])
def test_a_quiet_period_is_at_least_as_long_as_a_look_is_good_for(world: World, quiet_s: float) -> None:
    """A task that has just looked begins within that time: a cleanup that is set not to wait would not see it."""
    assert fences.LOOK_S < fences.QUIET_S
    ref, _ = killed(world)
    assert Cleanup(world, ref, quiet_s).finish() >= max(quiet_s, fences.QUIET_S)


def test_behind_a_commit_too_for_the_server_lives_on(world: World) -> None:
    """A second run of a task has reported, and the first one hangs in its source: it looks when that goes on."""
    ref, stood = committed(world, writers_left=True)
    cleanup = Cleanup(world, ref)
    assert cleanup.look() is not None
    assert stands_at(world, ref) != stood
    late = world.write(ref, ["late"], 7)  # it had just looked
    cleanup.wait(2)
    assert cleanup.finish() >= fences.QUIET_S
    assert late.transaction is not None and late.transaction.transactional_id in cleanup.poll.aborted
    wait_until(lambda: world.open_ids() == [], "the end of it")
    assert world.visible() == ["a"]


def test_behind_a_commit_whose_tasks_ran_once_nothing_is_moved_or_waited_for(world: World) -> None:
    ref, stood = committed(world, writers_left=False)
    assert Cleanup(world, ref).finish() < fences.QUIET_S
    assert stands_at(world, ref) == stood


def test_behind_a_manifest_that_is_refused_too(world: World) -> None:
    ref, stood = killed(world)
    record_prepared(world.session, world.manifest(ref, [world.write(ref, ["a"])]), writers_left=True)
    world.session.ledger.decide_abort(ref, decided_by=RUN, reason="refused")
    assert Cleanup(world, ref).finish() >= fences.QUIET_S
    assert stands_at(world, ref) != stood
    moved = stands_at(world, ref)
    assert Cleanup(world, ref).finish() < fences.QUIET_S, "it was swept behind that"
    assert stands_at(world, ref) == moved
