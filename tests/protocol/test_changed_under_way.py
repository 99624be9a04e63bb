"""What others do between prepare and commit: to the topic, to the transaction, to the cluster.

Before the decision all of it makes decide refuse, and the next attempt goes through. After it nothing is ever reported
done that is not, and what can be rolled forward is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from airflow_kafka_eos.errors import InDoubtError, TopicError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.visible import _check_topics, lags
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.kafka.open_transactions import wait_until
from tests.protocol.world import RUN, World
from tests.transaction_version import finalize

Change = Callable[[World, Manifest], None]


def _admin(world: World) -> AdminClient:
    return AdminClient({"bootstrap.servers": world.settings.for_librdkafka()["bootstrap.servers"]})


def _delete(world: World, manifest: Manifest) -> None:
    admin = _admin(world)
    admin.delete_topics([world.topic])[world.topic].result(30)
    wait_until(lambda: world.topic not in admin.list_topics(timeout=10).topics, "the deletion")


def _recreate(world: World, manifest: Manifest) -> None:
    _delete(world, manifest)
    _create(world)


def _create(world: World) -> None:
    admin = _admin(world)
    admin.create_topics([NewTopic(world.topic, 2)])[world.topic].result(30)

    def is_there() -> bool:
        found = admin.list_topics(timeout=10).topics.get(world.topic)
        return found is not None and len(found.partitions) == 2

    wait_until(is_there, "the topic")


def _widen(world: World, manifest: Manifest) -> None:
    admin = _admin(world)
    admin.create_partitions([NewPartitions(world.topic, 4)])[world.topic].result(30)


def _init_by_hand(world: World, manifest: Manifest) -> None:
    """What KIP-939's forceTerminateTransaction does, and what a producer started with our id would do."""
    world.session.coordinator.init_producer_id(manifest.transactions[0].transactional_id, 10_000)


def _markers_by_hand(world: World, manifest: Manifest) -> None:
    """``kafka-transactions.sh abort``: markers written at the leaders, past the coordinator (KIP-664)."""
    prepared = manifest.prepared[0]
    marker, topic = (
        WriteTxnMarkersRequest.WritableTxnMarker,
        WriteTxnMarkersRequest.WritableTxnMarker.WritableTxnMarkerTopic,
    )
    with Wire(world.settings) as wire:
        for w in prepared.writes:
            asked = WriteTxnMarkersRequest(
                markers=[
                    marker(
                        producer_id=prepared.transaction.state.producer_id,
                        producer_epoch=prepared.transaction.state.producer_epoch,
                        transaction_result=False,
                        topics=[topic(name=w.topic, partition_indexes=[w.partition])],
                        coordinator_epoch=-1,
                        transaction_version=1,
                    )
                ]
            )
            answer = wire.send_to_leader(w.topic_partition, asked)
            codes = [p.error_code for m in answer.markers for t in m.topics for p in t.partitions]
            assert codes == [0], codes


def _state(world: World) -> LoadState:
    row = world.session.ledger.load(world.load)
    assert row is not None
    return row.state


@pytest.mark.parametrize("change", [_recreate, _init_by_hand, _markers_by_hand])
def test_before_the_decision_it_is_refused_and_the_next_attempt_goes_through(
    world: World, change: Change
) -> None:
    manifest = world.prepare(["a", "b"], ["c"])
    change(world, manifest)
    with pytest.raises(UndecidableError, match="can no longer be committed"):
        world.decide(manifest)
    sweep(world.session, world.load, up_to=1, by=RUN)
    world.load_all(["d"])
    assert (world.visible(), world.open_ids(), _state(world)) == (["d"], [], LoadState.COMMITTED)


def test_a_topic_that_is_deleted_before_the_decision_is_never_a_committed_load(world: World) -> None:
    manifest = world.prepare(["a", "b"], ["c"])
    _delete(world, manifest)
    with pytest.raises(UndecidableError, match=f"topic {world.topic} does not exist"):
        world.decide(manifest)
    report = sweep(world.session, world.load, up_to=1, by=RUN)
    assert (len(report.aborted), _state(world)) == (2, LoadState.ABORTING)


@pytest.mark.parametrize("change", [_delete, _recreate])
def test_a_topic_that_is_gone_after_the_decision_leaves_the_load_in_doubt(
    world: World, change: Change
) -> None:
    """Nothing is left that could tell of a commit, so none is reported (rule: log-is-the-evidence)."""
    manifest = world.prepare(["a", "b"], ["c"])
    world.decide(manifest)
    change(world, manifest)
    with pytest.raises(InDoubtError, match="transaction"):
        world.commit()
    assert _state(world) is LoadState.IN_DOUBT


@pytest.mark.parametrize("decided", [False, True])
def test_a_topic_that_gets_more_partitions_loses_nothing(world: World, decided: bool) -> None:
    manifest = world.prepare(["a", "b"], ["c"])
    if not decided:
        _widen(world, manifest)
    world.decide(manifest)
    if decided:
        _widen(world, manifest)
    world.commit()
    assert (world.visible(), world.open_ids(), _state(world)) == (["a", "b", "c"], [], LoadState.COMMITTED)


@pytest.fixture
def old_world(tmp_path: Path) -> Iterator[World]:
    """A world of its own, on a cluster that has not been upgraded to transaction version 2 yet."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with LocalKafka(version="4.4") as kafka:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
        finalize(kafka.bootstrap_servers, 1)
        kafka.create_topic("orders", partitions=2)
        with connect(settings, url, "test") as session:
            yield World(session, settings, "orders", LoadIdentity("test", "orders", "upgrade"))


def test_an_upgrade_from_transaction_version_1_to_2_between_prepare_and_commit_loses_nothing(
    old_world: World,
) -> None:
    """KIP-890: the version is finalized while transactions are open."""
    old_world.decide(old_world.prepare(["a", "b"], ["c"]))
    finalize(old_world.settings.bootstrap_servers, 2)
    old_world.commit()
    assert (old_world.visible(), old_world.open_ids()) == (["a", "b", "c"], [])
    after = World(old_world.session, old_world.settings, "orders", LoadIdentity("test", "orders", "after"))
    after.load_all(["d"])
    assert (after.visible(), after.open_ids()) == (["a", "b", "c", "d"], [])


def test_a_committed_load_is_not_visible_in_a_topic_that_was_made_anew(world: World) -> None:
    """Offsets begin again there: with what others write, readers soon look as if they were past the load.

    Rule: loaded-is-visible.
    """
    manifest = world.load_all(["a"], ["b"])
    later = replace(world, load=LoadIdentity("test", "orders", world.load.key + "-later"))
    _delete(world, manifest)
    with pytest.raises(TopicError, match=r"was deleted.*readers see nothing of it"):
        lags(world.session, world.load)
    _create(world)
    later.load_all([str(n) for n in range(40)], [str(n) for n in range(40)])
    with pytest.raises(TopicError, match=r"deleted and created again.*on_committed='reload'"):
        lags(world.session, world.load)
    assert lags(later.session, later.load) == []


@pytest.mark.parametrize("gone", ["anew", "missing"])
def test_a_reload_is_not_proposed_where_another_topic_has_the_load(world: World, gone: str) -> None:
    """It would be there twice."""
    world.load_all(["a"])
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None
    kept = dict(world.session.ledger.summary(world.load, 1).topic_ids)
    if gone == "anew":
        admin = _admin(world)
        admin.create_topics([NewTopic(gone, 1)])[gone].result(30)
    then = kept | {gone: "the id that it had"}
    with pytest.raises(TopicError, match=rf"topic {gone} was.*A reload would write {world.topic} once more") as caught:
        _check_topics(world.session, row, then)
    assert "on_committed" not in caught.value.remedy
