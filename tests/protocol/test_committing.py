"""A decided load is rolled forward, and reported done only on the log's word.

Rules: log-is-the-evidence, committed-is-verified.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError, UndecidableError
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.protocol.stages.visible import lags
from airflow_kafka_eos.transaction import Outcome
from bench.cleanup import CountingWire
from tests.protocol.world import World, foreign_transaction

KILLED_COMMIT = """
import os, signal, sys
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.protocol.session import connect

bootstrap, url, key = sys.argv[1:]
with connect(KafkaSettings.from_mapping({"bootstrap.servers": bootstrap}), url, "test") as session:
    rows = session.ledger.transactions(LoadIdentity("test", "orders", key), 1)
    session.coordinator.end(rows[0].transaction, Verdict.COMMIT)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _state(world: World) -> LoadState:
    row = world.session.ledger.load(world.load)
    assert row is not None
    return row.state


def test_committed_means_visible_once_and_nothing_open(world: World) -> None:
    world.load_all(["a", "b"], ["c"])
    assert (_state(world), world.visible(), world.open_ids()) == (LoadState.COMMITTED, ["a", "b", "c"], [])
    assert lags(world.session, world.load) == []


def test_a_commit_killed_between_two_endtxn_is_finished_by_a_rerun(
    world: World, settings: KafkaSettings, ledger_url: str
) -> None:
    manifest = world.prepare(["a"], ["b"], ["c"])
    world.decide(manifest)
    bootstrap = settings.for_librdkafka()["bootstrap.servers"]
    died = subprocess.run(
        [sys.executable, "-c", KILLED_COMMIT, bootstrap, ledger_url, world.load.key], timeout=60
    )
    assert died.returncode == -9
    assert len(world.open_ids()) == 2
    world.commit()
    assert (world.visible(), world.open_ids()) == (["a", "b", "c"], [])
    world.commit()  # and once more, for nothing
    assert world.visible() == ["a", "b", "c"]


def test_without_a_decision_nothing_is_committed(world: World) -> None:
    world.prepare(["a"])
    with pytest.raises(UndecidableError):
        world.commit()
    assert world.visible() == []


def test_a_pass_ends_nothing_that_is_not_decided_to_be_committed(world: World) -> None:
    ref = world.prepare(["a"]).attempt
    before = world.open_ids()
    with pytest.raises(UndecidableError, match="not decided"):
        commit_pass(world.session, world.load, 1)
    world.session.ledger.decide_abort(ref, decided_by="dag/run", reason="killed")
    with pytest.raises(UndecidableError, match="not decided"):
        commit_pass(world.session, world.load, 1)
    assert (len(before), world.open_ids(), world.visible()) == (1, before, [])


def test_committed_is_written_only_when_every_marker_is_there(world: World) -> None:
    manifest = world.prepare(["a"], ["b"])
    world.decide(manifest)
    ended = world.session.coordinator.end(manifest.transactions[0], Verdict.COMMIT)
    assert ended
    first = manifest.transactions[0].transactional_id

    world.session.ledger.record_outcomes(world.load, 1, {first: Outcome.COMMITTED})
    with pytest.raises(NotFinishedError):
        world.session.ledger.record_committed(world.load, 1)
    with pytest.raises(NotFinishedError):
        lags(world.session, world.load)  # loaded does not report a load that is only decided
    assert _state(world) is LoadState.COMMITTING
    world.commit()
    assert _state(world) is LoadState.COMMITTED


def test_a_transaction_lost_after_the_decision_is_lost_never_done(world: World) -> None:
    manifest = world.prepare(["a"], ["b"])
    world.decide(manifest)
    lost = manifest.transactions[1]
    world.session.coordinator.end(lost, Verdict.ABORT)  # the broker's timeout, or a hand
    until = time.monotonic() + 30
    while (result := commit_pass(world.session, world.load, 1)).open:
        assert time.monotonic() < until
    assert result.lost == [lost.transactional_id]
    assert _state(world) is LoadState.REPAIRING
    # a person sees what became of each
    outcomes = [t.outcome for t in world.session.ledger.transactions(world.load, 1)]
    assert outcomes == [Outcome.COMMITTED, Outcome.LOST]
    with pytest.raises(InDoubtError):
        world.session.ledger.record_committed(world.load, 1)
    assert world.visible() == ["a"]


def test_a_pass_is_idempotent(world: World) -> None:
    world.decide(world.prepare(["a"], ["b"]))
    until = time.monotonic() + 30
    while commit_pass(world.session, world.load, 1).open:
        assert time.monotonic() < until
    again = commit_pass(world.session, world.load, 1)
    assert (again.newly_committed, again.open) == ([], [])


def test_loaded_names_who_holds_readers_back(world: World) -> None:
    name = f"slow-service-{world.load.key}"
    producer = foreign_transaction(world, name)
    world.load_all([str(n) for n in range(40)])
    waiting = lags(world.session, world.load)
    assert [h.transactional_id for lag in waiting for h in lag.blockers] == [name]
    assert name in str(waiting[0])
    producer.commit_transaction(30)
    until = time.monotonic() + 30
    while lags(world.session, world.load):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_who_holds_back_many_partitions_is_asked_at_once(world: World, topic: Callable[..., str]) -> None:
    """Whoever waits for readers looks every second."""
    sent = {}
    for partitions in (2, 8):
        world.topic = topic(partitions=partitions)
        world.load, other = (LoadIdentity("test", "many", f"{world.topic}-{n}") for n in range(2))
        holder = replace(world, load=other).prepare([str(n) for n in range(60)])
        world.load_all([str(n) for n in range(60)])
        with CountingWire(world.settings) as wire:
            late = lags(replace(world.session, partitions=Partitions(wire)), world.load)
            sent[partitions] = wire.sent
        assert len(late) == partitions and all(lag.blockers for lag in late)
        assert {h.transactional_id for lag in late for h in lag.blockers} <= {
            t.transactional_id for t in holder.transactions
        }
    assert sent[2] == sent[8] and sent[8]["ListTransactionsRequest"] == 1


def test_a_load_that_is_held_back_by_another_load_does_not_deadlock_it(world: World) -> None:
    later = replace(world, load=LoadIdentity("test", "orders", world.load.key + "-later"))
    first, second = world.prepare([str(n) for n in range(40)]), later.prepare([str(n) for n in range(40)])
    later.decide(second)
    later.commit()  # does not wait for readers
    assert lags(later.session, later.load)
    world.decide(first)
    world.commit()
    until = time.monotonic() + 30
    while lags(world.session, world.load) or lags(later.session, later.load):
        assert time.monotonic() < until
        time.sleep(0.1)
