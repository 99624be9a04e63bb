"""Topics, offsets, producers, and what logs prove (rule: log-is-the-evidence), on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.errors import ConfigurationError, TopicError
from airflow_kafka_eos.kafka.admin import preflight
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.admin.find_markers import text_of, uuid_of
from airflow_kafka_eos.kafka.admin.partitions import LsoBlocker, Partitions, ProducerState
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records.scan import Sought
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import Marker, PreparedTransaction, TopicPartition
from tests.kafka.open_transactions import (
    an_id,
    begin,
    coordinator_of,
    prepare,
    settings_of,
    wait_ended,
    wait_until,
    write,
)

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def wire(kafka: LocalKafka) -> Iterator[Wire]:
    with Wire(settings_of(kafka.bootstrap_servers)) as wire:
        yield wire


@pytest.fixture(scope="module")
def coordinator(wire: Wire) -> Coordinator:
    return coordinator_of(wire)


@pytest.fixture(scope="module")
def partitions(wire: Wire) -> Partitions:
    return Partitions(wire)


@pytest.fixture(scope="module")
def admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers})


def ids_of(partitions: Partitions, *names: str) -> dict[str, str]:
    return {name: info.topic_id for name, info in partitions.topic_info(names).items()}


def delete_before(admin: AdminClient, tp: TopicPartition, offset: int) -> None:
    for done in admin.delete_records([ConfluentPartition(tp.topic, tp.partition, offset)]).values():
        assert done.result(30).low_watermark == offset


# -- topics and settings -----------------------------------------------------------------------------------------


def test_topic_info(partitions: Partitions, topic: Callable[..., str]) -> None:
    one, three = topic(), topic(partitions=3)
    found = partitions.topic_info([one, three])
    assert [found[one].partitions, found[three].partitions] == [1, 3]
    assert found[one].topic_id != found[three].topic_id
    assert text_of(uuid_of(found[one].topic_id)) == found[one].topic_id
    assert partitions.topic_info([]) == {}


def test_a_missing_topic_is_named_with_the_command_to_create_it(partitions: Partitions) -> None:
    with pytest.raises(TopicError, match=r"nowhere.*--create --topic nowhere"):
        partitions.topic_info(["nowhere"])
    with pytest.raises(TopicError, match="__consumer_offsets"):
        preflight.check_topics(partitions, ["__consumer_offsets"])


def test_who_reads_a_topic_that_is_missing_is_not_told_to_create_it(partitions: Partitions) -> None:
    with pytest.raises(TopicError, match=r"nowhere does not exist .*It was deleted, or .* another cluster") as caught:
        partitions.topic_info(["nowhere"], to_read=True)
    assert "--create" not in str(caught.value)


def test_settings_of_topics_and_brokers(partitions: Partitions, topic: Callable[..., str]) -> None:
    name = topic(config={"retention.ms": "1234567"})
    keys = ["retention.ms", "cleanup.policy"]
    assert partitions.topic_config([name], keys) == {
        name: {"retention.ms": "1234567", "cleanup.policy": "delete"}
    }
    assert partitions.broker_configs(["transaction.max.timeout.ms"])[1] == {"transaction.max.timeout.ms": "900000"}


def test_a_hold_time_that_no_broker_grants_is_refused_before_anything_is_written(partitions: Partitions) -> None:
    preflight.check_hold_time(partitions, 900_000)
    with pytest.raises(ConfigurationError, match=r"900001 ms.*transaction\.max\.timeout\.ms=900000"):
        preflight.check_hold_time(partitions, 900_001)


def test_this_broker_has_what_is_needed(wire: Wire) -> None:
    preflight.check_broker(wire)


# -- offsets and producers ---------------------------------------------------------------------------------------


def test_an_open_transaction_holds_back_the_last_stable_offset_and_is_named(
    kafka: LocalKafka, coordinator: Coordinator, partitions: Partitions, topic: Callable[..., str]
) -> None:
    name = topic()
    tp = TopicPartition(name, 0)
    first, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 1), {tp: 2})
    second, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 2), {tp: 3})
    assert partitions.last_stable_offsets([tp]) == {tp: 0}
    assert partitions.end_offsets([tp]) == {tp: 5}
    assert partitions.log_start_offsets([tp]) == {tp: 0}
    assert partitions.lso_blockers([tp])[tp] == [
        LsoBlocker(first.state.producer_id, first.state.producer_epoch, 0, first.transactional_id),
        LsoBlocker(second.state.producer_id, second.state.producer_epoch, 2, second.transactional_id),
    ]
    assert {at: [ProducerState(*p[:4]) for p in found] for at, found in partitions.producers([tp]).items()} == {
        tp: [
            ProducerState(first.state.producer_id, first.state.producer_epoch, 1, 0),
            ProducerState(second.state.producer_id, second.state.producer_epoch, 2, 2),
        ]
    }
    # the later one is decided, and still invisible: the earlier one holds it back
    assert coordinator.end(second, Verdict.COMMIT) is EndAnswer.DONE
    wait_ended(coordinator, second.transactional_id)
    assert partitions.last_stable_offsets([tp])[tp] <= last[tp]
    assert [h.transactional_id for h in partitions.lso_blockers([tp])[tp]] == [first.transactional_id]
    assert coordinator.end(first, Verdict.ABORT) is EndAnswer.DONE
    wait_until(lambda: partitions.last_stable_offsets([tp])[tp] > last[tp], "the last stable offset")
    assert partitions.lso_blockers([tp])[tp] == []


# -- evidence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "marker"), [(Verdict.COMMIT, Marker.COMMIT), (Verdict.ABORT, Marker.ABORT)])
def test_the_log_shows_what_happened(
    kafka: LocalKafka,
    coordinator: Coordinator,
    partitions: Partitions,
    topic: Callable[..., str],
    verdict: Verdict,
    marker: Marker,
) -> None:
    name, second = topic(partitions=3), topic()
    tps = {TopicPartition(name, 0): 3, TopicPartition(name, 2): 1, TopicPartition(second, 0): 2}
    ids = ids_of(partitions, name, second)
    txn, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name), tps)
    producer_id, epoch = txn.state.producer_id, txn.state.producer_epoch
    missing = partitions.markers(producer_id, last, ids, producer_epoch=epoch)
    assert missing == dict.fromkeys(tps, Marker.MISSING)
    assert coordinator.end(txn, verdict) is EndAnswer.DONE
    wait_ended(coordinator, txn.transactional_id)
    assert partitions.markers(producer_id, last, ids, producer_epoch=epoch) == dict.fromkeys(tps, marker)
    assert partitions.markers(producer_id, last, ids) == dict.fromkeys(tps, marker)


def test_a_marker_of_another_producer_is_none_of_ours(
    kafka: LocalKafka, coordinator: Coordinator, partitions: Partitions, topic: Callable[..., str]
) -> None:
    name = topic()
    tp = TopicPartition(name, 0)
    ours, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 1), {tp: 1})
    other, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 2), {tp: 1})
    assert coordinator.end(other, Verdict.COMMIT) is EndAnswer.DONE
    wait_ended(coordinator, other.transactional_id)
    ids = ids_of(partitions, name)
    assert partitions.markers(ours.state.producer_id, last, ids) == {tp: Marker.MISSING}


def test_the_marker_is_found_behind_megabytes_of_others(
    kafka: LocalKafka, coordinator: Coordinator, partitions: Partitions, topic: Callable[..., str]
) -> None:
    """Several Fetch answers for several partitions: what one answer has no room for is not taken as MISSING."""
    name = topic(partitions=4)
    tps = [TopicPartition(name, p) for p in range(4)]
    txn, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name), dict.fromkeys(tps, 1))
    bulk = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    write(bulk, dict.fromkeys(tps, 30), size=100_000)
    ids = ids_of(partitions, name)
    assert partitions.markers(txn.state.producer_id, last, ids) == dict.fromkeys(tps, Marker.MISSING)
    assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.DONE
    wait_ended(coordinator, txn.transactional_id)
    assert partitions.markers(txn.state.producer_id, last, ids) == dict.fromkeys(tps, Marker.COMMIT)


def test_the_ends_of_many_transactions_cost_no_more_requests_than_that_of_one(
    kafka: LocalKafka, coordinator: Coordinator, topic: Callable[..., str]
) -> None:
    name = topic()
    tp = TopicPartition(name, 0)
    every = [prepare(coordinator, kafka.bootstrap_servers, an_id(name, n), {tp: 1}) for n in range(5)]
    for number, (txn, _) in enumerate(every[:4]):
        coordinator.end(txn, Verdict.ABORT if number == 2 else Verdict.COMMIT)
        wait_ended(coordinator, txn.transactional_id)

    class Counted(Wire):
        asked = 0

        def send_to_broker(self, node_id: int, request: object) -> object:
            Counted.asked += 1
            return super().send_to_broker(node_id, request)

    with Counted(settings_of(kafka.bootstrap_servers)) as wire:
        partitions = Partitions(wire)
        ids = ids_of(partitions, name)
        sought = [Sought(t.state.producer_id, t.state.producer_epoch, last[tp]) for t, last in every]
        found, error, _ = partitions.markers_of({tp: sought}, ids)
        assert error is None
        assert [found[tp][one] for one in sought] == [
            Marker.COMMIT, Marker.COMMIT, Marker.ABORT, Marker.COMMIT, Marker.MISSING,
        ]  # fmt: skip
        assert Counted.asked == 1


def test_a_later_transaction_of_the_same_producer_id_is_not_taken_for_ours(
    kafka: LocalKafka,
    coordinator: Coordinator,
    partitions: Partitions,
    admin: AdminClient,
    topic: Callable[..., str],
) -> None:
    """confluent-kafka keeps producer id and epoch for its next transaction (transaction version 1)."""
    name = topic()
    tp = TopicPartition(name, 0)
    ids = ids_of(partitions, name)
    producer = begin(kafka.bootstrap_servers, an_id(name))
    first = write(producer, {tp: 1})
    state = coordinator.describe([an_id(name)])[an_id(name)].state
    producer.commit_transaction(30)
    producer.begin_transaction()
    second = write(producer, {tp: 1})
    producer.abort_transaction(30)
    assert (first[tp], second[tp]) == (0, 2)

    def markers(last: int, epoch: int | None = state.producer_epoch) -> Marker:
        return partitions.markers(state.producer_id, {tp: last}, ids, producer_epoch=epoch)[tp]

    assert [markers(0), markers(2)] == [Marker.COMMIT, Marker.ABORT]
    # as if the first one's marker had been compacted away: data of the same producer id comes first
    assert markers(1) is Marker.UNREADABLE
    # an epoch that is neither the transaction's nor the next one
    assert markers(0, state.producer_epoch + 1) is Marker.UNREADABLE
    assert markers(0, None) is Marker.COMMIT
    # our last record is deleted, its marker is still there
    delete_before(admin, tp, 1)
    assert markers(0) is Marker.COMMIT
    # the marker is deleted too: the abort marker that follows is not ours
    delete_before(admin, tp, 2)
    assert [markers(0), markers(2)] == [Marker.UNREADABLE, Marker.ABORT]
    delete_before(admin, tp, 3)
    assert [markers(0), markers(2)] == [Marker.UNREADABLE, Marker.ABORT]


def test_offsets_that_the_log_does_not_have_are_unreadable(
    kafka: LocalKafka, coordinator: Coordinator, partitions: Partitions, topic: Callable[..., str]
) -> None:
    """As after an unclean leader election that lost the records."""
    name = topic()
    tp = TopicPartition(name, 0)
    txn, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {tp: 1})
    found = partitions.markers(txn.state.producer_id, {tp: last[tp] + 10}, ids_of(partitions, name))
    assert found == {tp: Marker.UNREADABLE}


def test_what_was_deleted_says_nothing_of_what_is_behind_it(
    kafka: LocalKafka, coordinator: Coordinator, partitions: Partitions, admin: AdminClient, topic: Callable[..., str]
) -> None:
    """Two transactions of one load in a partition, asked for at once: retention took the first one with its end."""
    name = topic()
    tp = TopicPartition(name, 0)
    every = []
    for n in (1, 2):
        txn, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name, n), {tp: 1})
        coordinator.end(txn, Verdict.COMMIT)
        wait_ended(coordinator, txn.transactional_id)
        every.append(Sought(txn.state.producer_id, txn.state.producer_epoch, last[tp]))
    delete_before(admin, tp, every[1].last_offset)
    found, error, _ = partitions.markers_of({tp: every}, ids_of(partitions, name))
    assert error is None
    assert [found[tp][one] for one in every] == [Marker.UNREADABLE, Marker.COMMIT]


def test_a_recreated_or_deleted_topic_is_unreadable(
    kafka: LocalKafka,
    coordinator: Coordinator,
    partitions: Partitions,
    admin: AdminClient,
    topic: Callable[..., str],
) -> None:
    name, stays = topic(), topic()
    tp, kept = TopicPartition(name, 0), TopicPartition(stays, 0)
    ids = ids_of(partitions, name, stays)
    txn, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {tp: 1, kept: 1})
    assert coordinator.end(txn, Verdict.COMMIT) is EndAnswer.DONE
    wait_ended(coordinator, txn.transactional_id)
    admin.delete_topics([name])[name].result(30)
    wait_until(lambda: name not in admin.list_topics(timeout=10).topics, "the deletion")
    found = partitions.markers(txn.state.producer_id, last, ids)
    assert found == {tp: Marker.UNREADABLE, kept: Marker.COMMIT}
    kafka.create_topic(name)
    # the same offsets, the same producer id could stand there: only the topic id tells
    again, _ = prepare(coordinator, kafka.bootstrap_servers, an_id(name, 1), {tp: 1})
    assert coordinator.end(again, Verdict.COMMIT) is EndAnswer.DONE
    found = partitions.markers(again.state.producer_id, last, ids)
    assert found[tp] is Marker.UNREADABLE


def test_a_timeout_of_the_broker_shows_as_abort(
    kafka: LocalKafka, coordinator: Coordinator, partitions: Partitions, topic: Callable[..., str]
) -> None:
    """Its marker carries the next epoch."""
    name = topic()
    tp = TopicPartition(name, 0)
    txn, last = prepare(coordinator, kafka.bootstrap_servers, an_id(name), {tp: 1}, timeout_ms=1000)
    wait_ended(coordinator, txn.transactional_id)
    found = partitions.markers(
        txn.state.producer_id, last, ids_of(partitions, name), producer_epoch=txn.state.producer_epoch
    )
    assert found == {tp: Marker.ABORT}


def test_evidence_on_392() -> None:
    """EndTxn v4: the marker carries the transaction's own epoch."""
    with LocalKafka(version="3.9.2") as old:
        old.create_topic("orders", partitions=2)
        with Wire(settings_of(old.bootstrap_servers)) as wire:
            coordinator, partitions = coordinator_of(wire), Partitions(wire)
            preflight.check_broker(wire)
            ids = ids_of(partitions, "orders")
            for number, (verdict, marker) in enumerate(
                [(Verdict.COMMIT, Marker.COMMIT), (Verdict.ABORT, Marker.ABORT)]
            ):
                tps = {TopicPartition("orders", p): 2 for p in (0, 1)}
                txn, last = prepare(coordinator, old.bootstrap_servers, an_id("old", number), tps)
                epoch = txn.state.producer_epoch
                found = partitions.markers(txn.state.producer_id, last, ids, producer_epoch=epoch)
                assert found == dict.fromkeys(tps, Marker.MISSING)
                assert coordinator.end(txn, verdict) is EndAnswer.DONE
                wait_ended(coordinator, txn.transactional_id)
                found = partitions.markers(txn.state.producer_id, last, ids, producer_epoch=epoch)
                assert found == dict.fromkeys(tps, marker)
            holder = PreparedTransaction(an_id("old", 9), txn.state)
            holder, _ = prepare(coordinator, old.bootstrap_servers, holder.transactional_id, tps)
            first = TopicPartition("orders", 0)
            (blocker,) = partitions.lso_blockers([first])[first]
            assert blocker.transactional_id == holder.transactional_id
