"""force_terminate: ledger first, never what is decided or not ours, never InitProducerId.

Rules: decide-before-kafka, describe-then-ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import ConfigurationError, InDoubtError, UndecidableError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.repair.recover import give_up
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState, TransactionDescription
from tests.kafka.open_transactions import wait_ended
from tests.protocol.world import RUN, World, foreign_transaction


def terminate(world: World, name: str) -> PreparedTransaction | None:
    return force_terminate(world.session, name, by=RUN, reason="by hand")


def named(manifest: Manifest) -> str:
    (transaction,) = manifest.transactions
    return transaction.transactional_id


class Watched(Coordinator):
    """Tells what the ledger had when Kafka was told, and that nothing is initialised."""

    world: World
    seen: tuple[Verdict | None, ...] = ()

    def end(
        self, transaction: PreparedTransaction, verdict: Verdict, *, timeout_s: float | None = None
    ) -> EndAnswer:
        self.seen += tuple(a.verdict for a in self.world.session.ledger.attempts(self.world.load))
        return super().end(transaction, verdict, timeout_s=timeout_s)

    def init_producer_id(self, *_: object, **__: object) -> PreparedTxnState:
        raise AssertionError("InitProducerId ends whatever is open by then")


def test_the_attempt_is_undecidable_in_the_ledger_before_kafka_is_told(
    world: World, settings: KafkaSettings
) -> None:
    manifest = world.prepare(["a"], ["b"])
    first, second = (t.transactional_id for t in manifest.transactions)
    with Wire(settings, timeout_s=60) as wire:
        watched = Watched(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        watched.world = world
        ended = force_terminate(
            replace(world.session, coordinator=watched), first, by=RUN, reason="it holds readers back"
        )
    assert ended == manifest.transactions[0]
    assert watched.seen == (Verdict.ABORT,)
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None and (row.decided_by, row.reason) == (RUN, "it holds readers back")
    assert world.open_ids() == [second]  # one is ended; cleanup ends the rest
    with pytest.raises(UndecidableError):
        world.decide(manifest)
    assert terminate(world, first) is None  # again: nothing is open


def test_what_was_never_reported_is_found_by_its_id(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    entry = world.write(ref, ["a"])
    assert entry.transaction is not None
    assert terminate(world, entry.transaction.transactional_id) == entry.transaction
    assert (world.open_ids(), world.visible()) == ([], [])


def test_a_decided_transaction_is_never_terminated_and_still_commits(world: World) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    (transaction,) = manifest.transactions
    with pytest.raises(UndecidableError, match="it can only be rolled forward"):
        terminate(world, transaction.transactional_id)
    assert world.open_ids() == [transaction.transactional_id]
    world.commit()
    assert world.visible() == ["a"]
    assert terminate(world, transaction.transactional_id) is None


def test_a_decision_that_comes_between_the_looks_is_seen(world: World, settings: KafkaSettings) -> None:
    """Described first, then asked (rule: describe-then-ask)."""
    manifest = world.prepare(["a"])

    class Late(Coordinator):
        def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
            found = super().describe(ids)
            world.decide(manifest)  # idempotent
            return found

    with Wire(settings, timeout_s=60) as wire:
        late = Late(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        with pytest.raises(UndecidableError, match="decided to be committed"):
            terminate(replace(world, session=replace(world.session, coordinator=late)), named(manifest))
    world.commit()
    assert world.visible() == ["a"]


def test_a_decision_that_comes_behind_the_first_look_is_seen_too(world: World) -> None:
    """make_undecidable loses the race against decide here."""
    manifest = world.prepare(["a"])
    ledger = world.session.ledger

    class Late(type(ledger)):  # type: ignore[misc]
        def make_undecidable(self, *arguments: object, **others: object) -> object:
            world.decide(manifest)
            return super().make_undecidable(*arguments, **others)

    late = replace(world.session, ledger=Late(ledger.database, ledger.ledger_id))
    with pytest.raises(UndecidableError, match="decided to be committed"):
        terminate(replace(world, session=late), named(manifest))
    world.commit()
    assert world.visible() == ["a"]


def test_a_losing_copy_of_a_decided_attempt_is_terminated(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    accepted, copy = world.write(ref, ["a"]), world.write(ref, ["a"])
    manifest = world.manifest(ref, [accepted])
    world.session.ledger.mark_prepared(manifest)
    world.decide(manifest)
    assert copy.transaction is not None
    assert terminate(world, copy.transaction.transactional_id) == copy.transaction
    world.commit()
    assert (world.visible(), world.open_ids()) == (["a"], [])


def test_a_load_that_was_given_up_by_name_lets_go_of_its_transactions(world: World) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    (transaction,) = manifest.transactions
    row = give_up(world.session, world.load, by=RUN, reason="the topic is gone to pieces")
    assert row.state is not LoadState.COMMITTED
    assert terminate(world, transaction.transactional_id) == transaction
    assert (world.open_ids(), world.visible()) == ([], [])


@pytest.mark.parametrize("kind", ["another application", "another ledger", "another namespace"])
def test_a_foreign_transaction_is_never_terminated(world: World, kind: str) -> None:
    ours = world.session.ledger.ledger_id
    name = {
        "another application": f"billing-{world.load.key}",
        "another ledger": str(TransactionalId(world.load, "0123456789", 1, 0, 0)),
        "another namespace": str(TransactionalId(replace(world.load, namespace="other"), ours, 1, 0, 0)),
    }[kind]
    stranger = foreign_transaction(world, name)
    with pytest.raises(ConfigurationError, match="never ended from here"):
        terminate(world, name)
    stranger.commit_transaction(30)
    assert world.visible() == ["foreign"]


def test_an_id_of_ours_that_the_ledger_does_not_know_stops_for_a_person(world: World) -> None:
    """A ledger restored from yesterday's backup: it may have been decided since then."""
    name = str(
        TransactionalId(LoadIdentity("test", "lost", world.load.key), world.session.ledger.ledger_id, 1, 0, 0)
    )
    with pytest.raises(ConfigurationError, match="neither the ledger nor a coordinator knows"):
        terminate(world, name)
    producer = foreign_transaction(world, name)
    with pytest.raises(InDoubtError, match="the ledger does not know its attempt"):
        terminate(world, name)
    producer.abort_transaction(30)
    wait_ended(world.session.coordinator, name)
    assert terminate(world, name) is None
