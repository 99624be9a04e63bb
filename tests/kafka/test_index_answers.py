"""Ends of transactions by the leaders' lists of aborted ones, on real brokers of both transaction versions.

Rule: log-is-the-evidence. Each partition has more of other producers behind our records than one look at the log reads,
and a connection that refuses to go through a log where the list has to do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka.protocol.consumer.fetch import FetchRequest

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.find_markers import Evidence, Progress, fetch_request
from airflow_kafka_eos.kafka.admin.partitions import Partitions
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records.scan import Sought
from airflow_kafka_eos.kafka.records.transaction_index import SETTINGS, Answer, Told, judge, may_be_believed
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import Marker, PreparedTransaction, TopicPartition
from tests.conftest import NO_RETENTION_ROUNDS
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
_numbers = itertools.count(1)
#: of others, behind our records
MUCH = 400_000


class ScanForbidden(Exception):
    pass


class Watched(Wire):
    """Goes through no log unless it may; each partition of a Fetch of the other kind has one of its own."""

    may_scan = True
    scans = 0
    looks = 0

    def metadata(self, topics: Iterable[str]) -> Any:
        self.looks += 1
        return super().metadata(topics)

    def send_to_broker(self, node_id: int, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            if not self.may_scan:
                raise ScanForbidden
            self.scans += 1
        return super().send_to_broker(node_id, request)


@dataclass
class Place:
    kafka: LocalKafka
    wire: Watched
    coordinator: Coordinator
    partitions: Partitions

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> tuple[str, list[TopicPartition]]:
        name = f"indexed-{next(_numbers)}"
        self.kafka.create_topic(name, partitions=partitions, config=config)
        return name, [TopicPartition(name, p) for p in range(partitions)]

    def prepare(
        self, name: str, number: int, tps: Iterable[TopicPartition], records: int = 1, **options: Any
    ) -> tuple[PreparedTransaction, dict[TopicPartition, Sought]]:
        txn, last = prepare(
            self.coordinator, self.kafka.bootstrap_servers, an_id(name, number), dict.fromkeys(tps, records), **options
        )
        state = txn.state
        return txn, {
            tp: Sought(state.producer_id, state.producer_epoch, at, at - records + 1) for tp, at in last.items()
        }

    def others_write(self, tps: Iterable[TopicPartition], size: int = MUCH) -> None:
        # small batches, so that what is read of them is bounded by what is asked for
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "batch.size": 20_000})
        write(producer, dict.fromkeys(tps, size // 10_000), size=10_000)

    def end(self, txn: PreparedTransaction, verdict: Verdict) -> None:
        self.coordinator.end(txn, verdict)
        wait_ended(self.coordinator, txn.transactional_id)

    def find(
        self, sought: Mapping[TopicPartition, Sought], progress: Progress | None = None, *, may_scan: bool = False
    ) -> Evidence:
        topic_ids = {name: i.topic_id for name, i in self.partitions.topic_info({tp.topic for tp in sought}).items()}
        self.wire.may_scan = may_scan
        try:
            return self.partitions.markers_of(
                {tp: [one] for tp, one in sought.items()}, topic_ids, list(topic_ids), progress
            )
        finally:
            self.wire.may_scan = True

    def markers(
        self, sought: Mapping[TopicPartition, Sought], progress: Progress | None = None, *, may_scan: bool = False
    ) -> list[Marker]:
        found, error, _ = self.find(sought, progress, may_scan=may_scan)
        assert error is None
        return [found[tp][one] for tp, one in sought.items()]


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with (
        LocalKafka(version=request.param, broker_settings=NO_RETENTION_ROUNDS) as kafka,
        Watched(settings_of(kafka.bootstrap_servers)) as wire,
    ):
        yield Place(kafka, wire, coordinator_of(wire), Partitions(wire))


def ends_of(place: Place, sought: Mapping[TopicPartition, Sought]) -> Progress:
    """As decide records them: right before leaders show the transaction open."""
    ends = place.partitions.end_offsets(sought)
    return Progress({(tp, one): ends[tp] for tp, one in sought.items()})


# -- the list ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [Verdict.COMMIT, Verdict.ABORT])
def test_the_list_tells_in_all_partitions_at_once_and_no_log_is_gone_through(place: Place, verdict: Verdict) -> None:
    name, tps = place.topic(3)
    txn, sought = place.prepare(name, 1, tps)
    other, _ = place.prepare(name, 2, tps)  # others' transactions overlap it, with the opposite end
    place.others_write(tps)
    place.end(txn, verdict)
    place.end(other, Verdict.COMMIT if verdict is Verdict.ABORT else Verdict.ABORT)
    found, error, by_index = place.find(sought)
    assert error is None
    assert found == {tp: {one: Marker(verdict.value)} for tp, one in sought.items()}
    assert by_index == set(sought.items())


def test_behind_a_known_end_the_marker_itself_is_read(place: Place) -> None:
    name, tps = place.topic(2)
    txn, sought = place.prepare(name, 1, tps)
    place.others_write(tps)
    progress = ends_of(place, sought)
    place.end(txn, Verdict.COMMIT)
    place.others_write(tps)
    looks = place.wire.looks
    found, error, by_index = place.find(sought, progress)
    assert (found, error) == ({tp: {one: Marker.COMMIT} for tp, one in sought.items()}, None)
    assert by_index == set()
    assert place.wire.looks - looks == 2  # for the topics' ids, and once for both reads: the list, and behind the end


def test_where_the_marker_is_near_the_first_answer_is_the_log_itself(place: Place) -> None:
    name, tps = place.topic(2)
    first, of_first = place.prepare(name, 1, tps)
    second, of_second = place.prepare(name, 2, tps)
    place.end(first, Verdict.ABORT)
    place.end(second, Verdict.COMMIT)
    topic_ids = {name: place.partitions.topic_info([name])[name].topic_id}
    found, error, by_index = place.partitions.markers_of(
        {tp: [of_first[tp], of_second[tp]] for tp in tps}, topic_ids, [name]
    )
    assert error is None and not by_index
    assert found == {tp: {of_first[tp]: Marker.ABORT, of_second[tp]: Marker.COMMIT} for tp in tps}


def test_one_fetch_of_several_partitions_with_little_room_has_one_list(place: Place) -> None:
    """Why each partition is asked by itself: the second answer looks as if nothing were aborted."""
    name, tps = place.topic(2)
    txn, sought = place.prepare(name, 1, tps)
    place.end(txn, Verdict.ABORT)
    topic_id = place.partitions.topic_info([name])[name].topic_id
    wanted = [(topic_id, tp.partition, sought[tp].last_offset) for tp in tps]
    wait_until(lambda: place.markers(sought) == [Marker.ABORT] * 2, "the markers")
    answer = place.wire.send_to_leader(tps[0], fetch_request(wanted, 1, 8 << 20, isolation=1))
    seen = {
        p.partition_index: Answer(
            p.records or b"",
            p.last_stable_offset,
            None if p.aborted_transactions is None
            else tuple((a.producer_id, a.first_offset) for a in p.aborted_transactions),
        )
        for t in answer.responses
        for p in t.partitions
    }  # fmt: skip
    assert [judge(seen[tp.partition], sought[tp]) for tp in tps] == [Told.ABORTED, Told.UNKNOWN]
    assert seen[1].last_stable_offset > sought[tps[1]].last_offset and not seen[1].aborted


# -- where it does not tell -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [Verdict.COMMIT, Verdict.ABORT])
@pytest.mark.parametrize("knows_ends", [True, False])
def test_what_others_hold_back_is_read_and_never_called_open(place: Place, verdict: Verdict, knows_ends: bool) -> None:
    name, tps = place.topic(2)
    holder, of_holder = place.prepare(name, 1, tps)
    txn, sought = place.prepare(name, 2, tps)
    place.others_write(tps)
    progress = ends_of(place, sought) if knows_ends else None
    assert place.markers(sought, progress, may_scan=not knows_ends) == [Marker.MISSING] * 2
    place.others_write(tps)
    place.end(txn, verdict)
    assert place.markers(sought, progress, may_scan=not knows_ends) == [Marker(verdict.value)] * 2
    assert place.markers(of_holder, may_scan=True) == [Marker.MISSING] * 2
    place.end(holder, Verdict.ABORT)


def test_what_was_read_is_not_read_again(place: Place) -> None:
    name, tps = place.topic()
    (tp,) = tps
    holder, _ = place.prepare(name, 1, tps)
    txn, sought = place.prepare(name, 2, tps)
    progress = ends_of(place, sought)
    place.others_write(tps)
    assert place.markers(sought, progress) == [Marker.MISSING]
    end = place.partitions.end_offsets(tps)[tp]
    assert progress.behind == {(tp, sought[tp]): end}
    # without a known end the log is gone through once, and then on from there
    progress = Progress()
    assert place.markers(sought, progress, may_scan=True) == [Marker.MISSING]
    assert progress.behind == {(tp, sought[tp]): end}
    place.end(txn, Verdict.COMMIT)
    assert place.markers(sought, progress) == [Marker.COMMIT]
    place.end(holder, Verdict.ABORT)


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("is_late", [True, False])
def test_data_behind_the_manifest_is_found_however_the_end_is_told(place: Place, is_held: bool, is_late: bool) -> None:
    """Behind the end offsets that decide recorded, by a writer that goes on."""
    name, tps = place.topic()
    (tp,) = tps
    if is_held:
        holder, _ = place.prepare(name, 1, tps)
    producer = begin(place.kafka.bootstrap_servers, an_id(name, 2))
    last = write(producer, {tp: 1})[tp]
    state = place.coordinator.describe([an_id(name, 2)])[an_id(name, 2)].state
    sought = {tp: Sought(state.producer_id, state.producer_epoch, last, last)}
    if is_late:
        place.others_write(tps)
    progress = ends_of(place, sought)
    write(producer, {tp: 1})
    place.end(PreparedTransaction(an_id(name, 2), state), Verdict.COMMIT)
    assert place.markers(sought, progress, may_scan=True) == [Marker.UNREADABLE]
    if is_held:
        place.end(holder, Verdict.ABORT)


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("is_another_epoch", [True, False])
def test_without_its_own_batch_at_the_last_offset_nothing_counts(
    place: Place, is_held: bool, is_another_epoch: bool
) -> None:
    """As after a log was cut off and written on: another one's record stands there, or one of another epoch."""
    name, tps = place.topic()
    (tp,) = tps
    before, _ = place.prepare(name, 1, tps)
    place.end(before, Verdict.COMMIT)
    if is_held:
        holder, _ = place.prepare(name, 2, tps)
    txn, sought = place.prepare(name, 3, tps)
    place.others_write(tps)
    progress = ends_of(place, sought)
    place.end(txn, Verdict.COMMIT)
    there = sought[tp]
    ours = there._replace(producer_epoch=7) if is_another_epoch else there._replace(last_offset=there.last_offset + 1)
    progress.behind[tp, ours] = progress.behind.pop((tp, sought[tp]))
    assert place.markers({tp: ours}, progress, may_scan=True) == [Marker.UNREADABLE]
    if is_held:
        place.end(holder, Verdict.ABORT)


def test_an_open_one_is_looked_for_once_it_is_late(place: Place) -> None:
    name, tps = place.topic()
    (tp,) = tps
    _, sought = place.prepare(name, 1, tps)
    foreign = sought[tp]._replace(producer_epoch=7)
    progress = Progress({(tp, foreign): sought[tp].last_offset + 1})
    assert place.markers({tp: foreign}, progress) == [Marker.MISSING]  # its end may be about to come
    assert place.markers({tp: foreign}, progress, may_scan=True) == [Marker.UNREADABLE]
    # who looks once only is told at once
    progress = Progress({(tp, foreign): sought[tp].last_offset + 1}, repeats=False)
    assert place.markers({tp: foreign}, progress, may_scan=True) == [Marker.UNREADABLE]


def test_what_the_log_does_not_have_any_more(place: Place) -> None:
    name, tps = place.topic()
    (tp,) = tps
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap_servers})
    txn, sought = place.prepare(name, 1, tps, records=2)
    place.end(txn, Verdict.ABORT)
    place.others_write(tps)

    def delete_before(offset: int) -> None:
        for done in admin.delete_records([ConfluentPartition(tp.topic, 0, offset)]).values():
            assert done.result(30).low_watermark == offset

    delete_before(sought[tp].last_offset)  # its first record is gone, its last one is there
    assert place.markers(sought) == [Marker.ABORT]
    delete_before(sought[tp].last_offset + 1)
    assert place.markers(sought, may_scan=True) == [Marker.ABORT]  # its marker is the first of what is left
    delete_before(sought[tp].last_offset + 2)
    assert place.markers(sought, may_scan=True) == [Marker.UNREADABLE]
    assert place.markers({tp: sought[tp]._replace(last_offset=10**6)}, may_scan=True) == [Marker.UNREADABLE]
    # an end offset that the log does not have any more
    second, sought = place.prepare(name, 2, tps)
    place.end(second, Verdict.COMMIT)
    place.others_write(tps)
    assert place.markers(sought, Progress({(tp, sought[tp]): 10**6})) == [Marker.COMMIT]


def test_an_end_offset_that_the_log_does_not_have_is_no_proof_of_being_open(place: Place) -> None:
    """As after a log was cut off. Readers are held back, so the list says nothing either."""
    name, tps = place.topic()
    (tp,) = tps
    holder, _ = place.prepare(name, 1, tps)
    txn, sought = place.prepare(name, 2, tps)
    place.end(txn, Verdict.ABORT)
    assert place.markers(sought, Progress({(tp, sought[tp]): 10**6}), may_scan=True) == [Marker.ABORT]
    place.end(holder, Verdict.ABORT)


def test_a_topic_that_was_deleted_is_unreadable(place: Place) -> None:
    name, tps = place.topic()
    txn, sought = place.prepare(name, 1, tps)
    place.end(txn, Verdict.COMMIT)
    topic_ids = {name: place.partitions.topic_info([name])[name].topic_id}
    admin = AdminClient({"bootstrap.servers": place.kafka.bootstrap_servers})
    admin.delete_topics([name])[name].result(30)
    wait_until(lambda: name not in admin.list_topics(timeout=10).topics, "the deletion")
    found, error, _ = place.partitions.markers_of({tp: [one] for tp, one in sought.items()}, topic_ids, [name])
    assert (error, found) == (None, {tp: {one: Marker.UNREADABLE} for tp, one in sought.items()})


# -- whose it may be believed of --------------------------------------------------------------------------------------


def test_these_brokers_are_seen_to_be_apaches_and_a_compacted_topic_is_not_believed(place: Place) -> None:
    plain, _ = place.topic()
    compacted, _ = place.topic(config={"cleanup.policy": "compact"})
    both, _ = place.topic(config={"cleanup.policy": "compact,delete"})
    config = place.partitions.shown_config([plain, compacted, both, "nowhere"], SETTINGS)
    features = place.wire.features()
    believed = {name: may_be_believed(config.get(name, {}), features) for name in (plain, compacted, both, "nowhere")}
    assert believed == {plain: True, compacted: False, both: False, "nowhere": False}


# -- before the end ---------------------------------------------------------------------------------------------------


def test_the_standing_of_partitions_is_asked_of_whoever_answers(place: Place) -> None:
    name, tps = place.topic(2)
    txn, sought = place.prepare(name, 1, tps, records=3)
    with Wire(settings_of(place.kafka.bootstrap_servers)) as fresh:  # knows no leader yet
        shown = Partitions(fresh).standing([*tps, TopicPartition("nowhere", 0)], 10)
    assert {tp: s.end_offset for tp, s in shown.items()} == {tp: sought[tp].last_offset + 1 for tp in tps}
    assert [[p.last_sequence for p in s.producers] for s in shown.values()] == [[2], [2]]
    assert [p.producer_id for s in shown.values() for p in s.producers] == [txn.state.producer_id] * 2
