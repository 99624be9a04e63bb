"""complete_transaction never answers "abort" for what a restored ledger has forgotten to have committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import InDoubtError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.naming import IdRole, TransactionalId
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import reference, submit
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TransactionDescription
from airflow_kafka_eos.two_phase_commit.recipe import Completion, complete_transaction
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.test_restored import backup, checkpoint, restored
from tests.protocol.test_restored import own as own
from tests.protocol.world import RUN, World

pytestmark = pytest.mark.broker


def complete(session: Session, transaction: PreparedTransaction, state: PreparedTxnState | None = None) -> Completion:
    given = transaction.state if state is None else state
    return complete_transaction(session, transaction.transactional_id, given, by=RUN)


def forgetful(own: World, session: Session) -> Session:
    """Its coordinators have forgotten every id (transactional.id.expiration.ms)."""

    class Forgetful(Coordinator):
        def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
            return {}

        def list_committed(self, prefix: str) -> list[str]:
            return []

    made = Forgetful(own.session.partitions.wire, namespace="test", ledger_id=session.ledger.ledger_id)
    return replace(session, coordinator=made)


def refused(
    own: World, old: Session, transaction: PreparedTransaction, says: str, names: PreparedTransaction | None = None
) -> None:
    """In doubt, with whatever state the caller has, and nothing is written or ended.

    :param names: the one that the error names, where it is another.
    """
    before = [a.verdict for a in old.ledger.attempts(own.load)]
    for state in (transaction.state, PreparedTxnState.EMPTY):
        with pytest.raises(InDoubtError, match=says) as caught:
            complete(old, transaction, state)
        assert caught.value.transactional_id == (names or transaction).transactional_id
    assert [a.verdict for a in old.ledger.attempts(own.load)] == before
    assert own.visible() == ["a", "b"]
    old.ledger.close()


def test_a_commit_that_its_coordinator_shows_is_in_doubt(own: World, tmp_path: Path) -> None:
    own.open_attempt()
    checkpoint(own)
    backup(tmp_path)
    ref = reference(own.session, own.session.ledger.attempts(own.load)[0])
    manifest = own.manifest(ref, [own.write(ref, ["a", "b"])])
    own.session.ledger.mark_prepared(manifest)
    own.decide(manifest)
    own.commit()
    refused(own, restored(own, tmp_path), manifest.transactions[0], "its coordinator shows it as committed")


def test_a_commit_of_an_attempt_that_the_ledger_never_opened_is_in_doubt(own: World, tmp_path: Path) -> None:
    checkpoint(own)
    backup(tmp_path)
    manifest = own.load_all(["a", "b"])
    refused(own, restored(own, tmp_path), manifest.transactions[0], "its coordinator shows it as committed")


def test_a_commit_that_only_the_log_shows_is_in_doubt(own: World, tmp_path: Path) -> None:
    manifest = own.prepare(["a", "b"])
    checkpoint(own)
    backup(tmp_path)
    own.decide(manifest)
    own.commit()
    old = forgetful(own, restored(own, tmp_path))
    refused(own, old, manifest.transactions[0], "the log has its commit markers")


def test_a_commit_of_another_transaction_of_the_load_is_in_doubt(own: World, tmp_path: Path) -> None:
    """A load is committed as a whole: what this ledger takes for the first attempt's is one of a forgotten decision."""
    ref = reference(own.session, own.open_attempt())
    first = own.write(ref, ["never"]).transaction
    assert first is not None
    checkpoint(own)
    backup(tmp_path)
    submit(own.session, own.load, owner=RUN)  # aborts the first attempt, and what it has open
    ref = reference(own.session, own.session.ledger.attempts(own.load)[-1])
    manifest = own.manifest(ref, [own.write(ref, ["a", "b"])])
    own.session.ledger.mark_prepared(manifest)
    own.decide(manifest)
    own.commit()
    refused(own, restored(own, tmp_path), first, "shows committed transactions", manifest.transactions[0])


def test_a_state_that_nobody_remembers_is_in_doubt_until_somebody_aborts_it(own: World, tmp_path: Path) -> None:
    ref = reference(own.session, own.open_attempt())
    name = TransactionalId(ref.load, ref.ledger_id, ref.attempt, role=IdRole.LOAD)
    mine = PreparedTransaction(str(name), PreparedTxnState(7, 1))
    with pytest.raises(InDoubtError, match="the caller has 7:1, and neither ledger nor coordinator know of it"):
        complete(own.session, mine)
    own.session.ledger.make_undecidable(own.load, up_to=1, decided_by="a person", reason="looked")
    assert complete(own.session, mine) == Completion(Verdict.ABORT, None)


def test_a_pooled_commit_that_the_ledger_has_forgotten_is_in_doubt(own: World, tmp_path: Path) -> None:
    pooled = PooledWorld(own.session, own.settings, own.topic, replace(own.load, name=f"pooled-{own.load.key}"))
    ref = pooled.driver()
    checkpoint(own)
    backup(tmp_path)
    manifest = pooled.manifest(ref, [pooled.task(ref, ["a", "b"])])
    own.session.ledger.mark_prepared(manifest)
    pooled.decide(manifest)
    pooled.commit()
    refused(pooled, restored(own, tmp_path), manifest.transactions[0], "its coordinator shows it as committed")


def test_what_was_aborted_is_still_answered_so_when_all_is_forgotten(own: World) -> None:
    manifest = own.prepare(["a"])
    (transaction,) = manifest.transactions
    assert complete(own.session, transaction) == Completion(Verdict.ABORT, transaction)
    assert complete(forgetful(own, own.session), transaction) == Completion(Verdict.ABORT, None)
