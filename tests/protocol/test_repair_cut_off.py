"""A repair that is cut off between its steps: what it had open is ended, or decided, never both.

Rules: decide-before-kafka, repair-replaces-lost-row.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import InDoubtError, LedgerUnavailableError, NotFinishedError, UndecidableError
from airflow_kafka_eos.ledger.rows import RepairState, TransactionRow
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.guards.restored_ledger import check_attempts_known
from airflow_kafka_eos.protocol.repair import copy
from airflow_kafka_eos.protocol.repair.copy import repair
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.transaction import Outcome
from tests.protocol.lost import decided, lose, read, state
from tests.protocol.world import World


def lost_one(world: World) -> tuple[Manifest, TransactionRow]:
    """A decided load whose one transaction was found lost."""
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    commit_pass(world.session, world.load, 1)
    (lost,) = world.session.ledger.transactions(world.load, 1)
    assert lost.outcome is Outcome.LOST
    return manifest, lost


def test_a_repair_that_is_under_way_is_no_attempt_that_the_ledger_has_forgotten(world: World) -> None:
    _, lost = lost_one(world)
    name = lost.transaction.transactional_id
    opened = world.session.ledger.open_repair(world.load, 1, name, opened_by="r")
    assert opened is not None
    check_attempts_known(world.session, world.load, [opened.transactional_id])
    known = TransactionalId.parse(opened.transactional_id)
    assert known is not None
    later = str(replace(known, attempt=known.attempt + 1))
    with pytest.raises(InDoubtError, match="transactions of others"):
        check_attempts_known(world.session, world.load, [opened.transactional_id, later])
    world.commit()


def test_a_repair_whose_adoption_was_not_answered_is_not_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was adopted, and the connection broke before the answer: it is decided, and rolled forward."""
    manifest, lost = lost_one(world)
    adopt = type(world.session.ledger).adopt

    def unanswered(*arguments: object, **named: object) -> object:
        adopt(*arguments, **named)  # type: ignore[arg-type]
        raise LedgerUnavailableError("the server closed the connection")

    with monkeypatch.context() as m:
        m.setattr(type(world.session.ledger), "adopt", unanswered)
        repair(world.session, world.load, 1, lost, by="r")
    (row,) = world.session.ledger.repairs(world.load)
    assert (row.state, world.open_ids()) == (RepairState.ADOPTED, [row.transactional_id])
    world.commit()
    assert len(read(world, "read_committed")) == manifest.records
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)
    assert len(world.session.ledger.repairs(world.load)) == 1


def test_a_repair_that_cannot_begin_in_time_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Final it would be for a writer. Here it is a coordinator that was away for a minute, and commit goes on."""
    manifest, lost = lost_one(world)
    with monkeypatch.context() as m:
        m.setattr(copy, "DEADLINE_S", -1)
        with pytest.raises(NotFinishedError, match="could not begin"):
            repair(world.session, world.load, 1, lost, by="r")
    assert [r.state for r in world.session.ledger.repairs(world.load)] == [RepairState.UNDECIDABLE]
    world.commit()
    assert len(read(world, "read_committed")) == manifest.records
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)


def test_a_repair_that_is_force_terminated_enters_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, lost = lost_one(world)
    adopt = type(world.session.ledger).adopt

    def terminated_before(*arguments: object, **named: object) -> object:
        (row,) = world.session.ledger.repairs(world.load)
        ended = force_terminate(world.session, row.transactional_id, by="ada", reason="it holds readers back")
        assert ended is not None
        return adopt(*arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as m:
        m.setattr(type(world.session.ledger), "adopt", terminated_before)
        assert not repair(world.session, world.load, 1, lost, by="r")
    assert world.open_ids() == []
    world.commit()
    assert len(read(world, "read_committed")) == manifest.records
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)


def test_a_force_terminate_that_is_refused_leaves_a_repair_as_it_is(world: World) -> None:
    manifest = decided(world, 2)
    for transaction in manifest.transactions:
        lose(world, transaction)
    commit_pass(world.session, world.load, 1)
    first, second = world.session.ledger.transactions(world.load, 1)
    assert repair(world.session, world.load, 1, first, by="r")
    world.session.ledger.open_repair(world.load, 1, second.transaction.transactional_id, opened_by="r")
    (adopted,) = world.open_ids()
    with pytest.raises(UndecidableError, match="it can only be rolled forward"):
        force_terminate(world.session, adopted, by="ada", reason="it holds readers back")
    assert [r.state for r in world.session.ledger.repairs(world.load)] == [RepairState.ADOPTED, RepairState.OPEN]
    world.commit()
    assert len(read(world, "read_committed")) == manifest.records


def test_a_force_terminate_with_nothing_open_leaves_a_repair_as_it_is(world: World) -> None:
    """Its copy may have taken hours; who names the id that was lost has nothing to end."""
    manifest, lost = lost_one(world)
    name = lost.transaction.transactional_id
    world.session.ledger.open_repair(world.load, 1, name, opened_by="r")
    assert force_terminate(world.session, name, by="ada", reason="it holds readers back") is None
    assert [r.state for r in world.session.ledger.repairs(world.load)] == [RepairState.OPEN]
    world.commit()
    assert len(read(world, "read_committed")) == manifest.records
