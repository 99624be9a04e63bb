"""KIP-939's calls where an id is of many attempts, or a transaction was replaced.

Rules: decide-before-kafka, recorded-identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TransactionDescription
from airflow_kafka_eos.two_phase_commit.recipe import Completion, complete_transaction, prepared_state
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import lose
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import RUN, World

_names = itertools.count(1)


@pytest.fixture
def pooled(session: Session, settings: KafkaSettings, topic: Callable[..., str]) -> PooledWorld:
    """A load name of its own, so that its slots are too."""
    load = LoadIdentity("test", f"recipe-{next(_names)}", "a")
    return PooledWorld(session, settings, topic(partitions=2), load)


def one(manifest: Manifest) -> PreparedTransaction:
    (transaction,) = manifest.transactions
    return transaction


def complete(world: World, transaction: PreparedTransaction) -> Completion:
    return complete_transaction(world.session, transaction.transactional_id, transaction.state, by=RUN)


def verdict(world: World) -> Verdict | None:
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None
    return row.verdict


def is_healthy(world: PooledWorld, manifest: Manifest) -> None:
    """Nobody has touched it: it is undecided, and commits."""
    assert verdict(world) is None
    world.decide(manifest)
    world.commit()


def test_a_committed_load_stays_so_when_its_id_went_to_another(pooled: PooledWorld) -> None:
    a = one(pooled.load_all(["a"]))
    b = pooled.of("b")
    theirs = b.prepare(["b"])
    assert one(theirs).transactional_id == a.transactional_id
    for _ in range(2):  # the recovery is run again
        assert complete(pooled, a) == Completion(Verdict.COMMIT, a)
    assert prepared_state(b.session, a.transactional_id) == one(theirs).state  # the present holder's
    is_healthy(b, theirs)
    assert pooled.visible() == ["a", "b"]
    assert complete(pooled, a) == Completion(Verdict.COMMIT, a)  # now that both are committed


def test_so_it_does_while_the_other_has_reported_nothing(pooled: PooledWorld) -> None:
    a = one(pooled.load_all(["a"]))
    b = pooled.of("b")
    ref = b.driver()
    assert complete(pooled, a) == Completion(Verdict.COMMIT, a)  # leased, nothing written
    entry = b.task(ref, ["b"])
    assert complete(pooled, a) == Completion(Verdict.COMMIT, a)
    theirs = b.manifest(ref, [entry])
    b.session.ledger.mark_prepared(theirs, writers_left=False)
    is_healthy(b, theirs)
    assert pooled.visible() == ["a", "b"]


def test_an_aborted_transaction_s_answer_touches_nothing_of_the_next_holder(pooled: PooledWorld) -> None:
    a = one(pooled.prepare(["a"]))
    assert complete(pooled, a) == Completion(Verdict.ABORT, a)
    pooled.clean()
    b = pooled.of("b")
    theirs = b.prepare(["b"])
    assert one(theirs).transactional_id == a.transactional_id
    assert complete(pooled, a) == Completion(Verdict.ABORT, None)
    is_healthy(b, theirs)
    assert complete(pooled, a) == Completion(Verdict.ABORT, None)
    assert pooled.visible() == ["b"]


def test_a_state_that_was_never_reported_is_not_taken_for_the_present_holder_s(pooled: PooledWorld) -> None:
    pooled.load_all(["before"])
    b = pooled.of("b")
    theirs = b.prepare(["b"])
    never = PreparedTransaction(one(theirs).transactional_id, PreparedTxnState(2**62, 0))
    assert complete(pooled, never) == Completion(Verdict.ABORT, None)
    is_healthy(b, theirs)


def test_what_is_open_and_was_never_reported_is_aborted_ledger_first(pooled: PooledWorld) -> None:
    entry = pooled.task(pooled.driver(), ["a"])
    assert entry.transaction is not None
    assert complete(pooled, entry.transaction) == Completion(Verdict.ABORT, entry.transaction)
    assert (verdict(pooled), pooled.open_ids()) == (Verdict.ABORT, [])


def test_without_a_state_the_present_holder_is_meant(pooled: PooledWorld) -> None:
    a = one(pooled.load_all(["a"]))
    b = pooled.of("b")
    theirs = b.prepare(["b"])
    nothing = replace(a, state=PreparedTxnState.EMPTY)
    assert complete(pooled, nothing) == Completion(Verdict.ABORT, one(theirs))
    assert (verdict(pooled), verdict(b)) == (Verdict.COMMIT, Verdict.ABORT)
    with pytest.raises(UndecidableError):
        b.decide(theirs)


def test_the_answer_stays_commit_behind_a_repair(world: World) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    lost = one(manifest)
    lose(world, lost)
    for _ in range(3):  # the first has it repaired
        assert complete(world, lost) == Completion(Verdict.COMMIT, lost)
    row = world.session.ledger.load(world.load)
    assert row is not None and row.state is LoadState.COMMITTED
    assert (world.visible(), world.open_ids()) == (["a"], [])
    (repair,) = world.session.ledger.repairs(world.load)
    (replacement,) = [
        t.transaction
        for t in world.session.ledger.transactions(world.load, 1)
        if t.transaction.transactional_id == repair.transactional_id
    ]
    assert complete(world, replacement) == Completion(Verdict.COMMIT, replacement)


def test_what_was_replaced_still_contradicts_another_state(world: World) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    lost = one(manifest)
    lose(world, lost)
    world.commit()
    with pytest.raises(UndecidableError, match="is decided to be committed as"):
        complete(world, replace(lost, state=PreparedTxnState(1, 1)))


def test_a_decision_between_the_looks_is_not_answered_with_abort(world: World) -> None:
    manifest = world.prepare(["a"])
    ledger = world.session.ledger

    class Late(type(ledger)):  # type: ignore[misc]
        def make_undecidable(self, *arguments: object, **named: object) -> object:
            world.decide(manifest)
            world.commit()
            return super().make_undecidable(*arguments, **named)

    late = replace(world.session, ledger=Late(ledger.database, ledger.ledger_id))
    answer = complete_transaction(late, one(manifest).transactional_id, one(manifest).state, by=RUN)
    assert answer == Completion(Verdict.COMMIT, one(manifest))
    assert world.visible() == ["a"]


@pytest.mark.parametrize(
    ("is_reported", "is_decided"), [(False, False), (True, False), (True, True)], ids=["writing", "prepared", "decided"]
)
def test_what_the_next_holder_of_a_slot_has_open_is_not_terminated(
    pooled: PooledWorld, settings: KafkaSettings, is_reported: bool, is_decided: bool
) -> None:
    """A's transaction ends, its slot is given back, and B begins: while the loop of A's termination sleeps."""
    a = pooled.prepare(["a"])
    b = pooled.of("b")
    theirs: list[Manifest] = []

    class Slow(Coordinator):
        looks = 0

        def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
            self.looks += 1
            if self.looks == 2:  # A is undecidable by now
                pooled.clean()
                ref = b.driver()
                assert ref.slot == a.attempt.slot
                manifest = b.manifest(ref, [b.task(ref, ["b"])])
                theirs.append(manifest)
                if is_reported:
                    b.session.ledger.mark_prepared(manifest, writers_left=False)
                if is_decided:
                    b.decide(manifest)
                wait_until(lambda: len(b.open_ids()) == 1, "B's transaction")
            return super().describe(ids)

    with Wire(settings, timeout_s=60) as wire:
        slow = Slow(wire, namespace="test", ledger_id=pooled.session.ledger.ledger_id)
        session = replace(pooled.session, coordinator=slow)
        assert force_terminate(session, one(a).transactional_id, by=RUN, reason="x") is None
    assert verdict(pooled) is Verdict.ABORT
    (manifest,) = theirs
    if not is_decided:
        assert verdict(b) is None
        b.session.ledger.mark_prepared(manifest, writers_left=False)
        b.decide(manifest)
    b.commit()
    assert b.visible() == ["b"]
