"""Whose a transaction is: by its whole identity, never by producer id and epoch alone."""

from __future__ import annotations

from dataclasses import replace

from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.manifest import ManifestEntry
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.guards.ownership import holder_of, holders_of
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.transaction import PreparedTransaction, PreparedTxnState
from tests.protocol.world import World


def test_a_ledger_of_two_clusters_tells_equal_producer_ids_apart(world: World) -> None:
    manifest = world.prepare(["a"])
    (here,) = manifest.transactions
    there = World(
        world.session, world.settings, world.topic, LoadIdentity("test", "other cluster", world.load.key)
    )
    ref = reference(there.session, there.open_attempt())
    name = str(TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 0))
    twin = ManifestEntry(0, PreparedTransaction(name, here.state), manifest.prepared[0].writes)
    record_prepared(there.session, there.manifest(ref, [twin]))
    (attempt,) = world.session.ledger.attempts(world.load)
    assert holders_of(world.session, [here]) == {here: attempt}


def test_what_was_never_reported_is_its_attempts_by_name(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    (attempt,) = world.session.ledger.attempts(world.load)
    copies = [str(TransactionalId(world.load, ref.ledger_id, 1, 0, n)) for n in range(3)]
    unreported = [PreparedTransaction(name, PreparedTxnState(2**62, n)) for n, name in enumerate(copies)]
    assert holders_of(world.session, unreported) == dict.fromkeys(unreported, attempt)
    assert holder_of(world.session, replace(unreported[0], state=PreparedTxnState.EMPTY)) == attempt


def test_what_the_ledger_does_not_know_is_nobodys(world: World) -> None:
    world.open_attempt()
    ours = world.session.ledger.ledger_id
    names = [
        "another application",
        str(TransactionalId(world.load, "0123456789", 1, 0, 0)),
        str(TransactionalId(world.load, ours, 2, 0, 0)),
        str(TransactionalId(replace(world.load, name="unknown"), ours, 1, 0, 0)),
    ]
    assert holders_of(world.session, [PreparedTransaction(n, PreparedTxnState(1, 0)) for n in names]) == {}
