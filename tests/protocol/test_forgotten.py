"""What a coordinator has forgotten to end is ended: as its log says, else as the coordinator does, never otherwise."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from airflow_kafka_eos.errors import AccessError, InDoubtError, NotFinishedError
from airflow_kafka_eos.kafka.admin.open_producers import OpenProducer, write_marker
from airflow_kafka_eos.ledger.rows import TransactionRow
from airflow_kafka_eos.load import LoadState, TransactionScope, Verdict
from airflow_kafka_eos.manifest import PartitionWrites
from airflow_kafka_eos.protocol import forgotten_markers as module
from airflow_kafka_eos.protocol import hanging
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.forgotten_markers import judge_forgotten
from airflow_kafka_eos.protocol.repair.recover import recover
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.transaction import (
    CoordinatorState,
    Marker,
    PreparedTransaction,
    PreparedTxnState,
    TopicPartition,
    TransactionDescription,
)
from tests.kafka.open_transactions import wait_until
from tests.protocol.forgetful import decide_anyway, end, prepare_forgotten, shown, sweep_it, write_forgotten
from tests.protocol.late import produce_late
from tests.protocol.lost import state
from tests.protocol.world import RUN, World


@pytest.fixture
def here(lax_world: World) -> World:
    return lax_world


@pytest.mark.broker
class TestOnRealBrokers:
    @pytest.mark.parametrize("scope", list(TransactionScope))
    @pytest.mark.parametrize("known", [[2], [0, 2]], ids=["everywhere", "in one of two partitions"])
    def test_a_forgotten_commit_is_completed_and_nothing_is_copied(
        self, here: World, known: list[int], scope: TransactionScope
    ) -> None:
        manifest = prepare_forgotten(here, "ab", known=known, scope=scope)
        decide_anyway(here, manifest)
        transaction = end(here, manifest, Verdict.COMMIT)
        assert len(shown(here, transaction)) == 3 - len(known)
        here.commit()
        assert (here.visible(), state(here), shown(here, transaction)) == (["a", "b"], LoadState.COMMITTED, [])
        assert here.session.ledger.repairs(here.load) == []

    @pytest.mark.parametrize("scope", list(TransactionScope))
    @pytest.mark.parametrize("known", [[2], [0, 2]], ids=["everywhere", "in one of two partitions"])
    def test_a_forgotten_abort_is_completed_and_its_records_are_copied(
        self, here: World, known: list[int], scope: TransactionScope
    ) -> None:
        """Found by the fault campaign: seed 849872916."""
        manifest = prepare_forgotten(here, "ab", known=known, scope=scope)
        decide_anyway(here, manifest)
        transaction = end(here, manifest, Verdict.ABORT)
        here.commit()
        assert (here.visible(), state(here), shown(here, transaction)) == (["a", "b"], LoadState.COMMITTED, [])
        assert len(here.session.ledger.repairs(here.load)) == 1
        stable = here.session.partitions.last_stable_offsets([TopicPartition(here.topic, n) for n in range(3)])
        assert stable == here.session.partitions.end_offsets(stable)

    def test_recover_and_cleanup_end_it_too(self, here: World) -> None:
        for finish in (recover_it, sweep_it):
            load = replace(here.load, key=f"{here.load.key} {finish.__name__}")
            mine = replace(here, load=load)
            manifest = prepare_forgotten(mine, "ab", known=[2])
            decide_anyway(mine, manifest)
            transaction = end(mine, manifest, Verdict.COMMIT)
            finish(mine)
            assert (state(mine), shown(mine, transaction)) == (LoadState.COMMITTED, [])
        assert here.visible() == ["a", "a", "b", "b"]

    def test_cleanup_ends_what_an_aborted_attempt_has_left_hanging(self, here: World) -> None:
        manifest = prepare_forgotten(here, "ab", known=[0, 2])
        transaction = end(here, manifest, Verdict.ABORT)
        assert len(shown(here, transaction)) == 1
        sweep_it(here)
        assert (shown(here, transaction), here.visible()) == ([], [])
        assert here.session.ledger.attempts(here.load)[-1].closed_at is not None

    def test_cleanup_ends_what_hangs_behind_its_own_abort(self, here: World) -> None:
        """An attempt that has reported nothing: its partitions are those that its coordinator showed."""
        ref = reference(here.session, here.open_attempt())
        transaction = write_forgotten(here, ref, "ab", known=[0, 1])
        poll = CleanPoll(here.load, up_to=9, by=RUN, quiet_s=0)
        assert poll(here.session) is not None
        wait_until(lambda: not here.open_ids(), "the coordinator's end")
        # on transaction version 1 a late record opens it again there, unknown to its coordinator
        produce_late(here.settings, transaction, TopicPartition(here.topic, 0), "late", 1)
        while poll(here.session) is not None:
            pass
        assert (shown(here, transaction), here.visible()) == ([], [])
        assert poll.summary()["aborted"] == [transaction.transactional_id]

    def test_cleanup_without_the_right_names_what_hangs_and_leaves_the_attempt_to_a_later_one(
        self, here: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manifest = prepare_forgotten(here, "ab", known=[2])
        transaction = end(here, manifest, Verdict.ABORT)
        with monkeypatch.context() as patched:
            patched.setattr(hanging, "write_marker", refused)
            problem = sweep_it(here)
        assert isinstance(problem, AccessError)
        command = "transactions hanging --running-longer-than 0s --abort"
        for part in ("refused ALTER on Cluster", f"{here.topic}-0", command):
            assert part in str(problem)
        assert problem.transactional_id == transaction.transactional_id
        assert here.session.ledger.attempts(here.load)[-1].closed_at is None
        assert sweep_it(here) is None
        assert shown(here, transaction) == []

    def test_a_topic_that_is_gone_keeps_no_aborted_attempt_from_being_swept(self, here: World) -> None:
        manifest = prepare_forgotten(here, "ab", known=[0, 1])
        end(here, manifest, Verdict.ABORT)
        admin = AdminClient({"bootstrap.servers": here.settings.for_librdkafka()["bootstrap.servers"]})
        for done in admin.delete_topics([here.topic]).values():
            done.result(30)
        assert sweep_it(here) is None
        assert here.session.ledger.attempts(here.load)[-1].closed_at is not None

    def test_what_its_coordinator_has_open_is_left_to_it(
        self, here: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """EndTxn decides; a marker past a coordinator that goes on could only contradict it.

        Rule: forgotten-markers.
        """
        manifest = prepare_forgotten(here, "ab", known=[0, 1])
        decide_anyway(here, manifest)
        row = here.session.ledger.attempts(here.load)[-1]
        every = here.session.ledger.transactions(here.load, row.number)
        monkeypatch.setattr(module, "write_marker", lambda *_: pytest.fail("a marker past its coordinator"))
        assert module.end_forgotten(here.session, row, every) == []
        here.commit()
        assert here.visible() == ["a", "b"]

    def test_killed_between_two_markers_it_goes_on_with_the_same(
        self, here: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for verdict in (Verdict.COMMIT, Verdict.ABORT):
            mine = replace(here, load=replace(here.load, key=f"{here.load.key} {verdict.value}"))
            manifest = prepare_forgotten(mine, "ab", known=[2])
            decide_anyway(mine, manifest)
            transaction = end(mine, manifest, verdict)
            with monkeypatch.context() as patched:
                patched.setattr(module, "write_marker", _only_once())
                with pytest.raises(Killed):
                    commit_pass(mine.session, mine.load, 1, ends_forgotten=True)
            assert len(shown(mine, transaction)) == 1
            mine.commit()
            assert (state(mine), shown(mine, transaction)) == (LoadState.COMMITTED, [])
        assert here.visible() == ["a", "a", "b", "b"]

    def test_without_the_right_everything_else_is_done_and_the_error_says_who_must_act(
        self, here: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        manifest = prepare_forgotten(here, "ab", known=[2])
        decide_anyway(here, manifest)
        transaction = end(here, manifest, Verdict.COMMIT)
        real = write_marker

        monkeypatch.setattr(module, "write_marker", refused)
        with caplog.at_level(logging.WARNING), pytest.raises(AccessError, match="refused ALTER on Cluster") as found:
            here.commit()
        said = str(found.value)
        for part in (f"{here.topic}-0 from offset", "(commit)", "loads recover", transaction.transactional_id):
            assert part in said
        assert (found.value.load, found.value.attempt) == (str(here.load), 1)
        with pytest.raises(AccessError, match="refused ALTER"):
            sweep_it(here)
        monkeypatch.setattr(module, "write_marker", real)
        recover_it(here)
        assert here.visible() == ["a", "b"]

    def test_no_commit_that_is_on_time_asks_for_it(self, here: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow_kafka_eos.protocol.stages.commit.LATE_S", 3600)
        manifest = prepare_forgotten(here, "ab", known=[2])
        decide_anyway(here, manifest)
        end(here, manifest, Verdict.COMMIT)
        with pytest.raises(NotFinishedError, match="1 transactions wait for their commit marker"):
            here.commit(deadline_s=1)


class Killed(BaseException):
    pass


def refused(*_: object) -> None:
    raise AccessError("the broker refused ALTER on Cluster: CLUSTER_AUTHORIZATION_FAILED")


def _only_once() -> object:
    real, calls = write_marker, itertools.count()

    def once(*arguments: object) -> bool:
        if next(calls):
            raise Killed
        return real(*arguments)  # type: ignore[arg-type]

    return once


def recover_it(world: World) -> None:
    recover(world.session, world.load, by="alice", deadline_s=30)


# -- the rule alone ----------------------------------------------------------------------------------------------------

STATE = PreparedTxnState(7, 3)
NAME = "an id"
FIRST = {0: 10, 1: 20}


def row() -> TransactionRow:
    writes = tuple(PartitionWrites("t", n, 1, 1, at, at + 4, "0" * 32, 0) for n, at in FIRST.items())
    return TransactionRow(PreparedTransaction(NAME, STATE), 0, writes, {"t": "id"}, None)


def at_coordinator(of: CoordinatorState) -> TransactionDescription:
    return TransactionDescription(NAME, of, PreparedTxnState(7, 4), 60_000, 0, frozenset())


def at_leaders(*partitions: int, state: PreparedTxnState = STATE, behind: int = 0) -> list[OpenProducer]:
    return [
        OpenProducer(TopicPartition("t", n), state.producer_id, state.producer_epoch, 0, FIRST[n] + behind, 0)
        for n in partitions
    ]


def markers(zero: Marker, one: Marker) -> dict[TopicPartition, Marker]:
    return {TopicPartition("t", 0): zero, TopicPartition("t", 1): one}


ALL_MISSING = markers(Marker.MISSING, Marker.MISSING)
OVER = [
    CoordinatorState.EMPTY,
    CoordinatorState.COMPLETE_ABORT,
    CoordinatorState.COMPLETE_COMMIT,
    CoordinatorState.DEAD,
]


def judged(*arguments: object) -> Verdict | None:
    found = judge_forgotten(row(), *arguments)  # type: ignore[arg-type]
    return None if found is None else found.verdict


@pytest.mark.parametrize("of", [s for s in CoordinatorState if s not in OVER])
def test_nothing_is_written_while_a_coordinator_may_end_it(of: CoordinatorState) -> None:
    assert judged(at_coordinator(of), ALL_MISSING, at_leaders(0, 1)) is None


@pytest.mark.parametrize("of", [*OVER, None])
@pytest.mark.parametrize(
    ("marker", "verdict"), [(Marker.COMMIT, Verdict.COMMIT), (Marker.ABORT, Verdict.ABORT)]
)
def test_the_marker_of_another_partition_counts_whatever_the_coordinator_shows(
    of: CoordinatorState | None, marker: Marker, verdict: Verdict
) -> None:
    """Else its partitions would contradict each other, and nothing could mend that."""
    seen = None if of is None else at_coordinator(of)
    assert judged(seen, markers(marker, Marker.MISSING), at_leaders(1)) is verdict


@pytest.mark.parametrize("of", [*OVER, None])
def test_without_any_marker_it_agrees_with_the_coordinator(of: CoordinatorState | None) -> None:
    """A marker of its that is late after all is then of the same kind."""
    seen = None if of is None else at_coordinator(of)
    expected = Verdict.COMMIT if of is CoordinatorState.COMPLETE_COMMIT else Verdict.ABORT
    assert judged(seen, ALL_MISSING, at_leaders(0, 1)) is expected


@pytest.mark.parametrize("other", [Marker.UNREADABLE, Marker.ABORT])
def test_what_is_in_doubt_is_left_to_a_person(other: Marker) -> None:
    both = {**markers(Marker.COMMIT, other), TopicPartition("t", 2): Marker.MISSING}
    found = judge_forgotten(
        replace(row(), writes=(*row().writes, PartitionWrites("t", 2, 1, 1, 0, 0, "0" * 32, 0))),
        at_coordinator(CoordinatorState.COMPLETE_COMMIT),
        both,
        [OpenProducer(TopicPartition("t", 2), 7, 3, 0, 0, 0)],
    )
    assert found is None


def test_what_is_not_the_recorded_transaction_gets_no_marker() -> None:
    over = at_coordinator(CoordinatorState.COMPLETE_ABORT)
    assert judged(over, ALL_MISSING, at_leaders(0, 1, state=PreparedTxnState(7, 4))) is None  # another epoch
    assert judged(over, ALL_MISSING, at_leaders(0, 1, behind=1)) is None  # what began elsewhere
    assert judged(over, markers(Marker.ABORT, Marker.ABORT), at_leaders(0, 1)) is None  # what began behind its end
    assert judged(over, ALL_MISSING, []) is None  # its markers have come since
    assert judged(over, ALL_MISSING, at_leaders(0)) is None  # one has, and the log does not show it yet
    found = judge_forgotten(row(), over, markers(Marker.MISSING, Marker.ABORT), at_leaders(0, 1))
    assert found is not None
    assert [p.partition.partition for p in found.producers] == [0]


def test_in_doubt_is_said_and_nothing_is_written(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = prepare_forgotten(here, "ab", known=[0, 2])
    decide_anyway(here, manifest)
    transaction = end(here, manifest, Verdict.COMMIT)
    (open_,) = shown(here, transaction)
    write_marker(here.session.partitions.wire, open_, Verdict.ABORT)  # by a hand, and wrongly
    with pytest.raises(InDoubtError, match="do not show one outcome"):
        here.commit()
    assert state(here) is LoadState.IN_DOUBT
