"""A load's end by its leaders' lists of aborted transactions: what must not contradict them, and what a pass costs.

Rule: log-is-the-evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.protocol.consumer.fetch import FetchRequest

from airflow_kafka_eos.hooks import Resolved
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.admin.find_markers import Evidence, Progress
from airflow_kafka_eos.kafka.admin.partitions import Partitions, ProducerState, Standing
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.kafka.records.scan import Sought
from airflow_kafka_eos.ledger.rows import TransactionRow
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.protocol.evidence import evidence_of, is_contradicted, look_before_ending, word_of
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import commit, commit_pass
from airflow_kafka_eos.protocol.stages.decide import observe
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    Marker,
    Outcome,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)
from tests.kafka.open_transactions import wait_ended, wait_until, write
from tests.protocol.lax import session_on, world_on
from tests.protocol.lost import decided, lose, state
from tests.protocol.world import World, foreign_transaction

pytestmark = pytest.mark.broker

C, A = Marker.COMMIT, Marker.ABORT


# -- what contradicts a list (no broker) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "word", "counted", "is_doubtful"),
    [
        (C, C, None, False),
        (C, C, 5, False),
        # no entry, and nobody says that it was committed: the list may be lost
        (C, A, None, True),
        (C, None, None, True),
        (C, None, 5, True),
        # an entry is there
        (A, A, None, False),
        (A, None, None, False),
        (A, C, None, True),
        # more was written than the manifest has, or less
        (C, C, 6, True),
        (C, C, 4, True),
        (A, A, 6, True),
    ],
)
def test_the_table_of_contradictions(told: Marker, word: Marker | None, counted: int | None, is_doubtful: bool) -> None:
    assert is_contradicted(told, word, counted, 5) is is_doubtful


def test_sequence_numbers_wrap_in_what_was_counted() -> None:
    assert not is_contradicted(C, C, 3, 2**31 + 3)


S = CoordinatorState


@pytest.mark.parametrize(
    ("shown", "producer_id", "epoch", "raises", "word"),
    [
        (S.COMPLETE_COMMIT, 7, 3, False, C),
        (S.PREPARE_COMMIT, 7, 3, True, C),
        (S.COMPLETE_COMMIT, 7, 4, True, C),
        # with transaction version 1 a raised epoch is the next transaction's
        (S.COMPLETE_COMMIT, 7, 4, False, None),
        (S.COMPLETE_COMMIT, 7, 5, True, None),
        (S.COMPLETE_COMMIT, 7, 2, True, None),
        (S.COMPLETE_COMMIT, 8, 3, True, None),
        (S.COMPLETE_ABORT, 7, 3, False, A),
        (S.COMPLETE_ABORT, 7, 4, False, A),
        (S.COMPLETE_ABORT, 7, 5, True, A),  # Kafka 4.0.0: KAFKA-19367
        (S.PREPARE_ABORT, 7, 4, True, A),
        (S.PREPARE_EPOCH_FENCE, 7, 4, True, A),
        (S.COMPLETE_ABORT, 7, 6, True, None),
        (S.ONGOING, 7, 3, True, None),
        (S.EMPTY, 7, 4, True, None),
        (S.DEAD, 7, 3, True, None),
        (S.UNKNOWN, 7, 3, True, None),
    ],
)
def test_the_table_of_what_coordinators_show(
    shown: CoordinatorState, producer_id: int, epoch: int, raises: bool, word: Marker | None
) -> None:
    seen = TransactionDescription("id", shown, PreparedTxnState(producer_id, epoch), 1, 1, frozenset())
    assert word_of(seen, PreparedTxnState(7, 3), raises=raises) is word


# -- on brokers -------------------------------------------------------------------------------------------------------


class Counting(Wire):
    """Counts the requests that go through logs, and forbids them."""

    may_scan = False
    scans = 0

    def send_to_broker(self, node_id: int, request: Any) -> Any:
        if isinstance(request, FetchRequest):
            self.scans += 1
            assert self.may_scan, "a log is gone through"
        return super().send_to_broker(node_id, request)


@pytest.fixture(scope="module", params=["3.9", "4.4"])
def opened(request: pytest.FixtureRequest, ledger_url: str) -> Iterator[tuple[LocalKafka, Session]]:
    with LocalKafka(version=request.param) as kafka, session_on(kafka, ledger_url) as session:
        yield kafka, session


@pytest.fixture
def here(opened: tuple[LocalKafka, Session]) -> World:
    return world_on(*opened, "indexed", partitions=2)


def others_write(world: World) -> None:
    servers = world.settings.for_librdkafka()["bootstrap.servers"]
    producer = Producer({"bootstrap.servers": servers, "batch.size": 20_000})
    write(producer, {TopicPartition(world.topic, p): 40 for p in (0, 1)}, size=10_000)


@pytest.fixture
def counting(here: World) -> Iterator[tuple[Session, Counting]]:
    """As another process has it: it remembers nothing."""
    with Counting(here.settings) as wire:
        coordinator = Coordinator(
            wire, namespace=here.session.namespace, ledger_id=here.session.ledger.ledger_id
        )
        yield replace(here.session, coordinator=coordinator, partitions=Partitions(wire)), wire


def row_of(world: World) -> TransactionRow:
    (row,) = world.session.ledger.transactions(world.load, 1)
    return row


def end(world: World, manifest: Manifest, verdict: Verdict = Verdict.COMMIT) -> None:
    for t in manifest.transactions:
        world.session.coordinator.end(t, verdict)
        wait_ended(world.session.coordinator, t.transactional_id)


def test_decide_records_the_ends_before_it_asks_what_is_open(here: World) -> None:
    asked = []

    class Recorded(Partitions):
        def end_offsets(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            asked.append("ends")
            return super().end_offsets(tps)

        def producers(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
            asked.append("producers")
            return super().producers(tps)

    manifest = here.prepare(["a", "b", "c"])
    others_write(here)
    seen = observe(replace(here.session, partitions=Recorded(here.session.partitions.wire)), manifest, 1)
    assert asked == ["ends", "producers"]
    here.decide(manifest)
    tps = sorted({w.topic_partition for p in manifest.prepared for w in p.writes})
    ends = here.session.partitions.end_offsets(tps)
    assert here.session.ledger.end_offsets(here.load, 1) == seen.end_offsets == ends
    here.commit()


def test_nothing_of_others_is_read_when_they_write_before_the_decision(
    here: World, counting: tuple[Session, Counting]
) -> None:
    manifest = here.prepare(["a"], ["b", "c"])
    others_write(here)
    here.decide(manifest)
    commit(counting[0], here.load, deadline_s=30)
    assert state(here) is LoadState.COMMITTED
    assert len(here.visible()) == 83


def test_nor_when_they_write_between_the_decision_and_its_end(here: World, counting: tuple[Session, Counting]) -> None:
    """What leaders show is looked at anew right before EndTxn, so the markers stand right behind that."""
    manifest = here.prepare(["a"], ["b", "c"])
    here.decide(manifest)
    others_write(here)
    seen: list[Evidence] = []

    class Seen(Partitions):
        def markers_of(self, *arguments: Any) -> Evidence:
            seen.append(super().markers_of(*arguments))
            return seen[-1]

    session, wire = counting
    later = datetime.now(UTC) - timedelta(seconds=5)
    ledger = session.ledger

    class Earlier:
        """The decision was some time ago."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

        def details(self, *arguments: Any) -> Any:
            known = ledger.details(*arguments)
            assert known is not None
            return known._replace(attempt=replace(known.attempt, decided_at=later.isoformat()))

    watched: Any = replace(session, partitions=Seen(wire), ledger=Earlier())  # type: ignore[arg-type]
    commit(watched, here.load, deadline_s=30)
    assert state(here) is LoadState.COMMITTED
    assert all(not found.by_index for found in seen)  # every marker was read


def test_nor_when_they_write_behind_the_end_and_nobody_has_looked(
    here: World, counting: tuple[Session, Counting]
) -> None:
    manifest = here.prepare(["a"], ["b", "c"])
    here.decide(manifest)
    end(here, manifest)
    others_write(here)
    commit(counting[0], here.load, deadline_s=30)
    assert state(here) is LoadState.COMMITTED


def test_a_reader_that_is_held_back_by_others_keeps_no_load_from_being_committed(
    here: World, counting: tuple[Session, Counting]
) -> None:
    holder = foreign_transaction(here, "holder-" + here.topic)
    manifest = here.prepare(["a", "b", "c"], ["d"])
    others_write(here)
    here.decide(manifest)
    commit(counting[0], here.load, deadline_s=30)
    assert state(here) is LoadState.COMMITTED
    holder.abort_transaction(30)


def test_what_is_lost_is_seen_by_its_entry(here: World, counting: tuple[Session, Counting]) -> None:
    manifest = decided(here, 2)
    lost, good = manifest.transactions
    lose(here, lost)
    others_write(here)
    wait_until(lambda: not commit_pass(counting[0], here.load, 1).open, "the commit of the other")
    outcomes = {t.transaction: t.outcome for t in here.session.ledger.transactions(here.load, 1)}
    assert outcomes == {lost: Outcome.LOST, good: Outcome.COMMITTED}
    here.commit()
    assert state(here) is LoadState.COMMITTED


class NoEntries(Partitions):
    """Leaders whose lists are lost: every transaction that readers are past looks committed."""

    def markers_of(
        self,
        sought: Mapping[TopicPartition, Iterable[Sought]],
        topic_ids: Mapping[str, str],
        indexed: Collection[str] = (),
        progress: Progress | None = None,
    ) -> Evidence:
        every = {tp: list(of) for tp, of in sought.items()}
        if not indexed:
            return super().markers_of(every, topic_ids)
        found = {tp: dict.fromkeys(of, Marker.COMMIT) for tp, of in every.items()}
        return Evidence(found, None, frozenset((tp, one) for tp, of in every.items() for one in of))


def test_a_list_that_is_lost_makes_no_lost_load_committed(here: World) -> None:
    manifest = decided(here, 1)
    lose(here, manifest.transactions[0])
    others_write(here)
    blind = replace(here.session, partitions=NoEntries(here.session.partitions.wire))
    result = commit_pass(blind, here.load, 1)
    assert (result.newly_committed, result.lost) == ([], [manifest.transactions[0].transactional_id])
    here.commit()
    assert len(here.visible()) == 80 + manifest.records


def test_what_the_coordinator_confirms_is_not_looked_up(here: World) -> None:
    manifest = here.prepare(["a", "b", "c"])
    here.decide(manifest)
    end(here, manifest)
    others_write(here)
    session = here.session
    row = row_of(here)
    name = row.transaction.transactional_id

    class Unscanned(NoEntries):
        def markers_of(self, sought: Any, topic_ids: Any, indexed: Any = (), progress: Any = None) -> Evidence:
            assert indexed, "the log is gone through"
            return super().markers_of(sought, topic_ids, indexed, progress)

    believing = replace(session, partitions=Unscanned(session.partitions.wire))
    for answers in ({name: EndAnswer.DONE}, {name: EndAnswer.FENCED}, {}):  # else what it shows
        found, error = evidence_of(believing, [row], answers=answers)
        assert error is None
        assert set(found[name].values()) == {Marker.COMMIT}
    # it has forgotten the id: the log has to say it
    class Forgetful(Coordinator):
        def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
            return {}

    forgetful = Forgetful(session.partitions.wire, namespace=session.namespace, ledger_id=session.ledger.ledger_id)
    with pytest.raises(AssertionError, match="gone through"):
        evidence_of(replace(believing, coordinator=forgetful), [row])
    here.commit()


def test_more_records_than_the_manifest_has_are_looked_up(here: World) -> None:
    """What the leader has counted until the end, or right before it where the end makes it forget."""
    manifest = here.prepare(["a", "b", "c"])
    here.decide(manifest)
    progress = Progress()
    row = row_of(here)
    look_before_ending(here.session, [row], progress)
    counted = {tp: count for (tp, _), count in progress.counted.items()}
    assert counted == {w.topic_partition: w.records for w in row.writes}
    ends = here.session.partitions.end_offsets(counted)
    assert {tp: at for (tp, _), at in progress.behind.items()} == ends
    end(here, manifest)

    class Blind(NoEntries):
        scanned = False

        def producers(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
            return {tp: [] for tp in tps}  # it has forgotten

        def markers_of(self, sought: Any, topic_ids: Any, indexed: Any = (), known: Any = None) -> Evidence:
            Blind.scanned |= not indexed
            return super().markers_of(sought, topic_ids, indexed, known)

    blind = replace(here.session, partitions=Blind(here.session.partitions.wire))
    evidence_of(blind, [row], progress=progress)
    assert not Blind.scanned
    progress.counted = {key: count + 1 for key, count in progress.counted.items()}
    evidence_of(blind, [row], progress=progress)
    assert Blind.scanned
    here.commit()


def test_an_end_offset_counts_only_with_all_records_and_nothing_ended(here: World) -> None:
    manifest = here.prepare(["a", "b", "c"])
    here.decide(manifest)
    row = row_of(here)
    (tp, *_) = row.last_offsets
    (w,) = [w for w in row.writes if w.topic_partition == tp]
    s = row.transaction.state
    good = ProducerState(s.producer_id, s.producer_epoch, w.records - 1, w.first_offset)

    def noted(*shown: ProducerState) -> tuple[list[int], list[int]]:
        class Shown(Partitions):
            def standing(self, tps: Iterable[TopicPartition], patience_s: float) -> dict[TopicPartition, Standing]:
                return {tp: Standing(1000, list(shown))}

        progress = Progress()
        look_before_ending(replace(here.session, partitions=Shown(here.session.partitions.wire)), [row], progress)
        return list(progress.behind.values()), list(progress.counted.values())

    assert noted(good) == ([1000], [w.records])
    assert noted() == ([], [])
    assert noted(good._replace(producer_epoch=s.producer_epoch + 1)) == ([], [])
    assert noted(good._replace(txn_start_offset=-1)) == ([], [w.records])  # ended: the marker may stand before
    assert noted(good._replace(txn_start_offset=w.first_offset + 1)) == ([], [w.records])
    assert noted(good._replace(last_sequence=w.records)) == ([], [w.records + 1])
    assert noted(good._replace(last_sequence=-1)) == ([], [])
    here.commit()


def test_a_topic_whose_list_may_not_be_believed_is_gone_through(here: World) -> None:
    asked: list[list[str]] = []

    class Seen(Partitions):
        def markers_of(self, sought: Any, topic_ids: Any, indexed: Any = (), progress: Any = None) -> Evidence:
            asked.append(list(indexed))
            return super().markers_of(sought, topic_ids, indexed, progress)

    session = replace(here.session, partitions=Seen(here.session.partitions.wire))
    manifest = here.prepare(["a", "b", "c"])
    here.decide(manifest)
    evidence_of(session, [row_of(here)])
    evidence_of(replace(session, reads_index=False), [row_of(here)])  # whatever it looks like
    servers = here.settings.for_librdkafka()["bootstrap.servers"]
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, here.topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)
    wait_until(
        lambda: session.partitions.topic_config([here.topic], ["cleanup.policy"])[here.topic]["cleanup.policy"]
        == "compact",
        "the setting",
    )
    evidence_of(session, [row_of(here)])
    assert asked == [[here.topic], [], []]
    here.commit()


def test_it_can_be_switched_off(here: World, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = Resolved(here.settings, ledger_url)
    with resolved.session("test") as session:
        assert session.reads_index
    monkeypatch.setenv("AIRFLOW__KAFKA_EOS__TRANSACTION_INDEX", "False")
    with resolved.session("test") as session:
        assert not session.reads_index


def test_a_broker_that_does_not_answer_keeps_nothing_from_being_ended(here: World) -> None:
    """Its standing is left out, soon."""
    with LocalKafka(version="4.4") as other:
        other.create_topic("t")
        with Wire(here.settings.from_mapping({"bootstrap.servers": other.bootstrap_servers})) as wire:
            tp = TopicPartition("t", 0)
            partitions = Partitions(wire)
            assert set(partitions.standing([tp], 10)) == {tp}
            other.kill()
            assert partitions.standing([tp], 0.5) == {}
