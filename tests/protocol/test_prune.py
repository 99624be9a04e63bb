"""Loads that were pruned, on a real broker: readers, commit, KIP-939's calls, leases; and a prune beside a commit."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.pruning import Pruned
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, submit
from airflow_kafka_eos.protocol.stages.decide import undecided_attempt
from airflow_kafka_eos.protocol.stages.visible import arrival_of, lags
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState
from airflow_kafka_eos.two_phase_commit.recipe import Completion, complete_transaction, prepared_state
from tests.kafka.open_transactions import wait_until
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import RUN, World, foreign_transaction

_numbers = itertools.count(1)


@pytest.fixture
def own(settings: KafkaSettings, tmp_path: Path) -> Iterator[Session]:
    """With a ledger of its own: pruning asks no load's leave."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with connect(settings, url, "test") as opened:
        yield opened


@pytest.fixture
def world(own: Session, settings: KafkaSettings, topic: Callable[..., str]) -> World:
    return World(own, settings, topic(partitions=2), LoadIdentity("test", "orders", f"key-{next(_numbers)}"))


@pytest.fixture
def pooled(own: Session, settings: KafkaSettings, topic: Callable[..., str]) -> PooledWorld:
    return PooledWorld(own, settings, topic(partitions=2), LoadIdentity("test", "pooled", "a"))


def prune(world: World) -> int:
    """How many transactions."""
    return sum(done.transactions for done in world.session.ledger.prune(timedelta(0)))


def complete(world: World, transaction: PreparedTransaction) -> Completion:
    return complete_transaction(world.session, transaction.transactional_id, transaction.state, by=RUN)


def test_every_step_of_a_pruned_load_runs_again_and_writes_nothing(world: World) -> None:
    world.load_all(["a"], ["b"])
    arrived = arrival_of(world.session, world.load)
    assert prune(world) == 2
    row = begin(world.session, world.load, owner="another run")
    assert (row.number, row.verdict) == (1, Verdict.COMMIT)
    assert submit(world.session, world.load, owner="another run").verdict is Verdict.COMMIT
    assert undecided_attempt(world.session, world.load, owner="another run").verdict is Verdict.COMMIT
    assert world.commit().number == 1
    assert recover(world.session, world.load, by="me", deadline_s=10).state is LoadState.COMMITTED
    assert sweep(world.session, world.load, up_to=1, by=RUN).is_quiet
    assert (lags(world.session, world.load), arrival_of(world.session, world.load)) == ([], arrived)
    assert world.visible() == ["a", "b"]


def test_whether_readers_see_a_pruned_load_is_still_known(world: World) -> None:
    holder = foreign_transaction(world, f"holder-{world.topic}")
    world.load_all(list("abcdefgh"), ["i"], ["j"])  # into both partitions
    before = lags(world.session, world.load)
    assert before and prune(world) == 3
    assert lags(world.session, world.load) == before
    holder.abort_transaction(30)
    # its markers are answered for before each leader has them
    wait_until(lambda: lags(world.session, world.load) == [], "readers to see it")


def test_a_prune_beside_a_commit_takes_nothing_that_the_commit_needs(world: World) -> None:
    """It asks for everything that is closed, again and again, while loads are written, decided and committed."""
    stop = threading.Event()
    failed: list[Exception] = []
    done: list[Pruned] = []

    def keep_pruning() -> None:
        with Ledger.open(world.session.ledger.database.url.render_as_string(False)) as ledger:
            while not stop.is_set():
                try:
                    done.extend(ledger.prune(timedelta(0)))
                except Exception as e:
                    failed.append(e)
                    return

    pruning = threading.Thread(target=keep_pruning)
    pruning.start()
    try:
        for number in range(4):
            world.load = LoadIdentity("test", "orders", f"beside-{number}")
            first = world.prepare(["refused"])
            world.session.ledger.decide_abort(first.attempt, decided_by=RUN, reason="refused")
            sweep(world.session, world.load, up_to=1, by=RUN)
            world.session.ledger.record_swept(world.load, 1)
            world.load_all([f"a{number}"], [f"b{number}"])
            assert world.session.ledger.state(world.load) is LoadState.COMMITTED
            assert arrival_of(world.session, world.load)["topics"][world.topic]["records"] == 2
    finally:
        stop.set()
        pruning.join(60)
    assert failed == []
    assert sum(one.transactions for one in done) + prune(world) == 4 * 3
    assert world.visible() == sorted(f"{letter}{n}" for letter in "ab" for n in range(4))


def test_what_was_committed_and_is_forgotten_is_never_called_aborted(world: World) -> None:
    manifest = world.load_all(["a"])
    (transaction,) = manifest.transactions
    assert complete(world, transaction) == Completion(Verdict.COMMIT, transaction)
    prune(world)
    with pytest.raises(UndecidableError, match="may have been pruned from the ledger"):
        complete(world, transaction)
    with pytest.raises(UndecidableError, match="may have been pruned from the ledger"):
        prepared_state(world.session, transaction.transactional_id)


def test_what_was_aborted_and_is_forgotten_stays_aborted(world: World) -> None:
    manifest = world.prepare(["a"])
    (transaction,) = manifest.transactions
    assert complete(world, transaction).verdict is Verdict.ABORT
    world.session.ledger.record_swept(world.load, 1)
    assert prune(world) == 1
    assert complete(world, transaction) == Completion(Verdict.ABORT, None)


def test_a_state_of_an_earlier_holder_of_a_slot_may_be_forgotten(pooled: PooledWorld) -> None:
    worlds = [pooled.of(key) for key in "abc"]
    first, second, third = (world.load_all(["x"]).transactions[0] for world in worlds)
    assert first.transactional_id == second.transactional_id == third.transactional_id
    assert prune(pooled) == 2
    for forgotten in (first, second, PreparedTransaction(first.transactional_id, PreparedTxnState(123, 4))):
        with pytest.raises(UndecidableError, match="may have been pruned from the ledger"):
            complete(pooled, forgotten)
    assert complete(pooled, third) == Completion(Verdict.COMMIT, third)
    # and the next lease finds that all is known
    pooled.of("d").load_all(["y"])
    assert pooled.visible() == ["x", "x", "x", "y"]


def test_of_a_pruned_slot_no_commit_is_taken_for_a_forgotten_one(pooled: PooledWorld) -> None:
    """Ids that only an old load has used show its commit still."""
    pooled.of("wide").load_all(["a"], ["b"], ["c"])
    for number in range(2):
        pooled.of(f"narrow-{number}").load_all(["d"])
        prune(pooled)
    pooled.of("wide again").load_all(["e"], ["f"], ["g"])
    assert len(pooled.visible()) == 8
    assert pooled.slot().doubt is None
