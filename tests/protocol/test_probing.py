"""Ids of an attempt that reported nothing are found by name where a listing hides them (rule: listing-only-adds)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, TransactionNaming
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import IdRole
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import PARTITIONS, TRIES, describe_guesses, sweep
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import CoordinatorState, PreparedTxnState, TransactionDescription
from tests.kafka.open_transactions import wait_until
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.test_sweeping import HidingCoordinator
from tests.protocol.world import RUN

_names = itertools.count(1)
REF = AttemptRef(LoadIdentity("team", "orders", "k"), "0123456789", 3, slot=2)


class Known:
    """A broker that knows some ids, and counts what it was asked."""

    def __init__(self, *names: object) -> None:
        self.names = {str(name) for name in names}
        self.requests = 0

    def __call__(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
        self.requests += 1
        shown = TransactionDescription("", CoordinatorState.ONGOING, PreparedTxnState(1, 0), 1, 0, frozenset())
        return {name: shown for name in ids if name in self.names}


def test_what_can_be_guessed_is_found_whatever_is_missing_between() -> None:
    every = [
        REF.common_id(IdRole.LOAD),
        REF.task_id(0, 0),
        REF.task_id(0, 2),  # the task attempts before it had no rows
        *(REF.task_id(7, n) for n in range(3 * TRIES)),
        REF.task_id(PARTITIONS - 1, 0),
        REF.task_id(PARTITIONS, 1),
    ]
    broker = Known(*every, REF.task_id(3 * PARTITIONS, 0), replace(REF, slot=1).task_id(0, 0))
    assert describe_guesses(broker, REF) == {str(name) for name in every}


def test_an_incrementing_attempt_is_asked_for_its_one_id_of_scope_load() -> None:
    own = replace(REF, slot=None)
    broker = Known(own.common_id(IdRole.LOAD), own.task_id(0, 0))
    assert describe_guesses(broker, own) == {str(own.common_id(IdRole.LOAD))}
    assert broker.requests == 1


def test_nothing_costs_one_request_and_so_does_an_attempt_of_scope_load() -> None:
    for own in (set(), {str(REF.common_id(IdRole.LOAD))}):
        broker = Known(*own)
        assert describe_guesses(broker, REF) == own
        assert broker.requests == 1


@pytest.fixture
def world(
    session: Session, settings: KafkaSettings, topic: Callable[..., str]
) -> Iterator[PooledWorld]:
    """All listings are empty, though transactions are open."""
    load = LoadIdentity("test", f"probed-{next(_names)}", "first")
    with Wire(settings, timeout_s=60) as wire:
        hiding = HidingCoordinator(wire, namespace="test", ledger_id=session.ledger.ledger_id)
        yield PooledWorld(replace(session, coordinator=hiding), settings, topic(partitions=2), load)


def are_open(world: PooledWorld, ids: Iterable[str]) -> set[str]:
    return {n for n, d in world.session.coordinator.describe(ids).items() if d.coordinator_state.value == "Ongoing"}


def test_a_killed_attempt_with_a_slot_is_swept_without_a_listing(world: PooledWorld) -> None:
    ref = world.driver()
    names = [world.task_id(ref, 0), world.task_id(ref, 1), world.task_id(ref, 0, attempt_number=1)]
    for name in names:
        world.write_arrow(name, ["never reported"])
    assert are_open(world, map(str, names)) == {str(n) for n in names}
    report = sweep(world.session, world.load, up_to=1, by=RUN)
    assert set(report.aborted) == {str(n) for n in names}
    assert are_open(world, map(str, names)) == set()


@pytest.mark.parametrize("naming", TransactionNaming)
def test_a_killed_attempt_of_scope_load_is_swept_without_a_listing(
    world: PooledWorld, naming: TransactionNaming
) -> None:
    world.naming = naming
    ref = world.driver()
    name = ref.common_id(IdRole.LOAD)
    world.write_arrow(name, ["never reported"])
    assert sweep(world.session, world.load, up_to=1, by=RUN).aborted == [str(name)]
    assert are_open(world, [str(name)]) == set()


def test_only_the_looks_that_begin_and_end_the_quiet_period_probe_and_nothing_is_missed(world: PooledWorld) -> None:
    """A zombie begins between them, and no listing shows it: the last look finds it, and the load is not clean yet."""
    ref = world.driver()
    now, drift, asked = [0.0], [0.0], list[int]()

    class Counting(type(world.session.coordinator)):  # type: ignore[misc]
        def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
            wanted = list(ids)
            asked.append(len(wanted))
            now[0] += drift[0]
            return super().describe(wanted)  # type: ignore[no-any-return]

    counting = Counting(
        world.session.partitions.wire, namespace="test", ledger_id=world.session.ledger.ledger_id
    )
    session = replace(world.session, coordinator=counting)
    poll = CleanPoll(world.load, up_to=1, by=RUN, quiet_s=10, clock=lambda: now[0], pause=lambda _: None)

    def look(at: float) -> tuple[bool, bool]:
        """Whether it is clean, and whether all that can be guessed was asked for."""
        asked.clear()
        now[0] = at
        return poll(session) is None, max(asked) > PARTITIONS * TRIES

    assert look(0) == (False, True)
    name = world.task_id(ref)
    world.write_arrow(name, ["zombie"])
    assert [look(at) for at in (1, 5, 9)] == [(False, False)] * 3
    assert are_open(world, [str(name)]) == {str(name)}
    assert look(10) == (False, True)
    wait_until(lambda: not are_open(world, [str(name)]), "the end of the zombie's transaction")
    while look(20) == (False, True) and poll._quiet_since is None:
        pass
    assert look(25) == (False, False)
    drift[0] = 2.0  # the period is over while it looks: such a look ends nothing, and is followed by one that may
    assert look(29) == (True, True)
    assert world.session.ledger.attempts(world.load)[0].closed_at is not None
