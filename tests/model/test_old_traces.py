"""Kafka 3.9: on transaction version 1 an end keeps the epoch, and what follows of it is in the specification too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.load import TransactionScope
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.crashes.victim import Place
from tests.model.checking import check, load_all, moved, replay
from tests.model.recorder import Recorder
from tests.model.replay import Refused

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("broker", ["3.9"], indirect=True)]


@pytest.mark.parametrize("scope", list(TransactionScope))
def test_a_retry_sweeps_what_the_first_try_left(
    new_world: Callable[..., Place], recorder: Recorder, scope: TransactionScope
) -> None:
    world = new_world(scope)
    world.prepare_all()
    load_all(world)
    check(replay(recorder.events, scope, attempts=2, tv=1), world, attempt=2)
    with pytest.raises(Refused, match="sent"):
        replay(moved(recorder.events, "sent", "asked"), scope, attempts=2, tv=1)


def _produce(producer: Producer, topic: str, partition: int) -> None:
    failed: list[object] = []
    producer.produce(topic, b"v", partition=partition, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(30) == 0
    assert failed == [None]


def test_a_zombie_that_begins_anew_under_the_aborted_identity_is_ended_again(
    new_world: Callable[..., Place], recorder: Recorder
) -> None:
    """On transaction version 2 the same trace cannot be: there the zombie is fenced.

    Rules: verified-end-before-reuse, describe-then-ask.
    """
    world = new_world()
    ref = reference(world.session, world.open_attempt())
    name = str(TransactionalId(ref.load, ref.ledger_id, ref.attempt, 0, 1))
    zombie = Producer({"bootstrap.servers": world.settings.bootstrap_servers, "transactional.id": name})
    zombie.init_transactions(30)
    zombie.begin_transaction()
    _produce(zombie, world.topic, 0)
    with recorder.elsewhere():
        identity = PreparedTransaction(name, world.session.coordinator.describe([name])[name].state)
    recorder.note("initialised", transaction=identity)
    recorder.note("wrote", transaction=identity, last=False)
    world.clean()
    swept = len(recorder.events)
    # it knows of no end: its next partition opens a transaction anew
    _produce(zombie, world.topic, 1)
    with recorder.elsewhere():
        assert world.open_ids() == [name]
    recorder.note("wrote", transaction=identity)
    world.clean()
    ended = [e.what["transaction"] for e in recorder.events if e.kind == "sent"]
    assert ended == [identity, identity]
    found = replay(recorder.events, tasks=1, batches=2, tv=1)
    assert (found.settled(), found.visible(), world.visible()) == (True, {frozenset()}, [])
    with pytest.raises(Refused, match=f"event {swept}, wrote"):
        replay(recorder.events, tasks=1, batches=2, tv=2)
