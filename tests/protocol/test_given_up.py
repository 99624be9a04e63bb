"""A load that was given up: closed once nothing of it is open, and what is decided is ended by nobody but a person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text

from airflow_kafka_eos.errors import InDoubtError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.rows import transactions_of
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.cleanup.namespace import Swept, clean, find
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.metrics import measure
from airflow_kafka_eos.protocol.repair.recover import give_up, recover
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import Decided, commit
from airflow_kafka_eos.protocol.stages.visible import lags
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import decided, lose, state
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import RUN, World


@pytest.fixture
def pooled(session: Session, settings: KafkaSettings, topic: Callable[..., str]) -> PooledWorld:
    name = topic(partitions=2)
    return PooledWorld(session, settings, name, LoadIdentity("test", f"given-up-{name}", "1"))


def given_up(world: World, *parts: list[str]) -> list[str]:
    """Its ids, all of them open."""
    manifest = world.prepare(*parts)
    world.decide(manifest)
    row = give_up(world.session, world.load, by=RUN, reason="loaded by hand")
    assert row.state is LoadState.GIVEN_UP
    return sorted(t.transactional_id for t in manifest.transactions)


def swept(world: World) -> Swept:
    (one,) = clean(world.session, {world.load: 1}, by=RUN, quiet_s=0, deadline_s=60)
    return one


def unfinished(world: World) -> int:
    return sum(a.load == world.load for a in world.session.ledger.unfinished("test"))


def test_cleanup_ends_nothing_decided_does_not_wait_and_says_what_a_person_does(pooled: PooledWorld) -> None:
    ids = given_up(pooled, ["a"], ["b"])
    found = swept(pooled)
    assert isinstance(found.error, InDoubtError) and "force-terminate" in found.error.remedy
    assert found.error.transactional_id in ids
    report = sweep(pooled.session, pooled.load, up_to=1, by=RUN)
    assert (sorted(report.given_up), report.is_quiet, report.aborted) == (ids, True, [])
    assert pooled.open_ids() == ids
    assert pooled.slot().is_leased  # nobody writes under these ids as long as they are open
    assert unfinished(pooled) == 1


def test_what_was_decided_long_ago_is_not_taken_from_its_caller(world: World) -> None:
    """The answer to the decision was lost, say, and somebody has given the load up until it was asked for again."""
    manifest = world.prepare(["a"])
    world.decide(manifest)
    give_up(world.session, world.load, by=RUN, reason="loaded by hand")
    (row,) = world.session.ledger.attempts(world.load)
    decided = Decided(replace(row, decided_at="2026-01-01T00:00:00+00:00"), transactions_of(manifest), {})
    with pytest.raises(UndecidableError, match="given up"):
        commit(world.session, world.load, deadline_s=10, decided=decided)
    assert world.open_ids() == [t.transactional_id for t in manifest.transactions]


def test_it_is_closed_when_nothing_is_open_and_its_slot_comes_back(pooled: PooledWorld, ledger_url: str) -> None:
    first, second = given_up(pooled, ["a"], ["b"])
    force_terminate(pooled.session, first, by=RUN, reason="given up")
    assert swept(pooled).error is not None
    assert (pooled.open_ids(), pooled.slot().is_leased) == ([second], True)  # one of two is not enough
    force_terminate(pooled.session, second, by=RUN, reason="given up")
    before = measure(pooled.session).decided_not_committed
    assert swept(pooled).error is None
    assert measure(pooled.session).decided_not_committed == before - 1
    (row,) = pooled.session.ledger.attempts(pooled.load)
    slot = pooled.slot()
    assert row.closed_at is not None
    assert (slot.is_leased, slot.quarantined_until is not None) == (False, True)
    assert state(pooled) is LoadState.GIVEN_UP
    assert pooled.load not in find(pooled.session, abandoned_after=timedelta(0)).loads
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        past = "UPDATE kafka_eos_slots SET quarantined_until = '2000-01-01T00:00:00.000000+00:00' WHERE load_name = :n"
        connection.execute(text(past), {"n": pooled.load.name})
    engine.dispose()
    manifest = pooled.of("next").load_all(["x"])
    assert (manifest.attempt.slot, pooled.visible()) == (0, ["x"])


def test_loaded_does_not_wait_for_what_nobody_completes(world: World) -> None:
    (name,) = given_up(world, ["a"])
    with pytest.raises(UndecidableError, match=r"given up by .*loaded by hand"):
        lags(world.session, world.load)
    force_terminate(world.session, name, by=RUN, reason="given up")
    assert swept(world).error is None
    assert unfinished(world) == 0
    with pytest.raises(UndecidableError, match="given up"):
        lags(world.session, world.load)


def test_cleanup_of_a_load_that_is_repairing_ends_and_says_who_repairs(world: World) -> None:
    manifest = decided(world, 2)
    lose(world, manifest.transactions[1])
    wait_until(lambda: not sweep(world.session, world.load, up_to=1, by=RUN).still_open, "the commit of the other")
    poll = CleanPoll(world.load, up_to=1, by=RUN, quiet_s=0)
    wait_until(lambda: poll(world.session) is None, "the end of cleanup")
    lost = manifest.transactions[1].transactional_id
    assert poll.problem is not None and poll.problem.transactional_id == lost
    assert lost in poll.summary()["problem"] and "loads recover" in poll.summary()["problem"]
    assert (state(world), unfinished(world)) == (LoadState.REPAIRING, 1)
    recover(world.session, world.load, by=RUN, deadline_s=60)
    assert (swept(world).error, state(world)) == (None, LoadState.COMMITTED)
