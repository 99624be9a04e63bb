"""KIP-939's calls over our ledger: the recorded decision decides, and nothing else (rule: decide-before-kafka)."""

from __future__ import annotations

import pytest

from airflow_kafka_eos.errors import ConfigurationError, UndecidableError
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState
from airflow_kafka_eos.two_phase_commit.recipe import (
    Completion,
    complete_transaction,
    init_transactions,
    is_keep_prepared_granted,
    prepared_state,
)
from tests.protocol.world import RUN, World

EMPTY = PreparedTxnState.EMPTY


def complete(world: World, transaction: PreparedTransaction, state: PreparedTxnState) -> Completion:
    return complete_transaction(world.session, transaction.transactional_id, state, by=RUN)


def test_the_recorded_decision_commits_all_of_its_load(world: World) -> None:
    manifest = world.prepare(["a"], ["b"])
    world.decide(manifest)
    first = manifest.transactions[0]
    for _ in range(2):  # the answer was lost: again
        assert complete(world, first, first.state) == Completion(Verdict.COMMIT, first)
    assert (world.visible(), world.open_ids()) == (["a", "b"], [])
    row = world.session.ledger.load(world.load)
    assert row is not None and row.state is LoadState.COMMITTED


def test_what_is_prepared_and_not_decided_is_aborted_ledger_first(world: World) -> None:
    manifest = world.prepare(["a"])
    (transaction,) = manifest.transactions
    assert complete(world, transaction, transaction.state) == Completion(Verdict.ABORT, transaction)
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None and row.verdict is Verdict.ABORT
    assert (world.visible(), world.open_ids()) == ([], [])
    with pytest.raises(UndecidableError):
        world.decide(manifest)


def test_a_state_that_nobody_has_recorded_aborts_what_is_open(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    entry = world.write(ref, ["a"])
    assert entry.transaction is not None
    assert prepared_state(world.session, entry.transaction.transactional_id) == EMPTY
    assert complete(world, entry.transaction, EMPTY) == Completion(Verdict.ABORT, entry.transaction)
    assert (world.visible(), world.open_ids()) == ([], [])


@pytest.mark.parametrize("given", [EMPTY, PreparedTxnState(1, 1)])
def test_a_decision_is_not_taken_back_because_a_database_says_otherwise(
    world: World, given: PreparedTxnState
) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    (transaction,) = manifest.transactions
    with pytest.raises(UndecidableError, match="is decided to be committed as"):
        complete(world, transaction, given)
    assert world.open_ids() == [transaction.transactional_id]
    world.commit()
    assert world.visible() == ["a"]


def test_keep_prepared_finds_what_is_open_and_ends_nothing(world: World) -> None:
    manifest = world.prepare(["a"])
    (transaction,) = manifest.transactions

    def again(keep_prepared: bool) -> PreparedTxnState:
        return init_transactions(
            world.session, transaction.transactional_id, keep_prepared=keep_prepared, by=RUN
        )

    assert again(True) == transaction.state == prepared_state(world.session, transaction.transactional_id)
    assert world.open_ids() == [transaction.transactional_id]
    world.decide(manifest)
    with pytest.raises(UndecidableError, match="decided to be committed"):
        again(False)
    world.commit()
    assert again(True) == EMPTY  # nothing is open any more
    assert world.visible() == ["a"]


def test_without_keep_prepared_what_is_open_is_aborted_and_the_attempt_with_it(world: World) -> None:
    manifest = world.prepare(["a"])
    (transaction,) = manifest.transactions
    name = transaction.transactional_id
    assert init_transactions(world.session, name, keep_prepared=False, by=RUN) == EMPTY
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None and row.verdict is Verdict.ABORT
    assert world.open_ids() == []


def test_a_zombie_under_the_id_is_not_taken_for_what_was_prepared(world: World) -> None:
    manifest = world.prepare(["a"])
    (transaction,) = manifest.transactions
    parsed = TransactionalId.parse(transaction.transactional_id)
    assert parsed is not None
    world.write_arrow(parsed, ["zombie"])  # InitProducerId: what was prepared is aborted
    with pytest.raises(UndecidableError, match="is open under the id, prepared was"):
        init_transactions(world.session, transaction.transactional_id, keep_prepared=True, by=RUN)


def test_no_released_broker_grants_keep_prepared_and_asking_ends_nothing(world: World) -> None:
    manifest = world.prepare_two_phase(["a"])
    probe = TransactionalId(world.load, world.session.ledger.ledger_id, 1, role=IdRole.PROBE)
    assert is_keep_prepared_granted(world.session, probe) is False
    assert world.open_ids() == [manifest.transactions[0].transactional_id]
    world.decide(manifest)
    world.commit()
    assert world.visible() == ["a"]


def test_only_ids_of_ours(world: World) -> None:
    for call in (
        lambda: prepared_state(world.session, "theirs"),
        lambda: complete_transaction(world.session, "theirs", EMPTY, by=RUN),
        lambda: init_transactions(world.session, "theirs", keep_prepared=False, by=RUN),
    ):
        with pytest.raises(ConfigurationError, match="never ended from here"):
            call()
