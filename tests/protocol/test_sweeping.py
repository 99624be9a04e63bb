"""Cleanup ends what is ours and undecidable, and nothing else (rules: describe-then-ask, only-our-ids)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from sqlalchemy import event

from airflow_kafka_eos.errors import BrokerUnavailableError, InDoubtError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator, CoordinatorEpochs
from airflow_kafka_eos.kafka.admin.end_transactions import EndAnswer
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.rows import RepairRow, RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.poll import APART_S, CleanPoll, own_number
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.guards import restored_ledger
from airflow_kafka_eos.protocol.stages.begin import begin, record_prepared, reference, submit
from airflow_kafka_eos.transaction import PreparedTransaction, TransactionDescription
from tests.protocol.lost import delete_records, lose
from tests.protocol.world import RUN, World, foreign_transaction


class HidingCoordinator(Coordinator):
    """It is just moving: every listing is empty, though its transactions are open."""

    described: frozenset[str] = frozenset()

    def list_open(self, prefix: str, *, longer_than_ms: int = -1) -> list[str]:
        return []

    def describe(self, ids: Iterable[str]) -> dict[str, TransactionDescription]:
        asked = frozenset(ids)
        # all but the one that shows whether the listing is limited
        self.described |= {i for i in asked if not i.endswith(".999999999-probe")}
        return super().describe(asked)


@pytest.fixture
def hiding(world: World, settings: KafkaSettings) -> Iterator[HidingCoordinator]:
    with Wire(settings, timeout_s=60) as wire:
        yield HidingCoordinator(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)


def test_a_killed_prepare_is_found_by_listing_and_aborted(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    entries = [
        world.write(ref, ["a", "b"], 0),
        world.write(ref, ["c"], 1),
    ]  # nothing is reported to the ledger
    report = sweep(world.session, world.load, up_to=1, by=RUN)
    assert sorted(report.aborted) == sorted(e.transaction.transactional_id for e in entries if e.transaction)
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    assert (world.open_ids(), world.visible()) == ([], [])
    assert world.session.ledger.load(world.load).state is LoadState.ABORTED  # type: ignore[union-attr]


def test_many_are_ended_with_as_few_questions_to_the_ledger_as_one(world: World) -> None:
    """Each question is a connection of its own."""
    sent: list[str] = []
    engine = world.session.ledger.database.engine
    note = lambda *a: sent.append(a[2])  # noqa: E731
    event.listen(engine, "before_cursor_execute", note)
    try:
        counts = []
        for parts in (1, 6):
            world.load = LoadIdentity("test", "orders", f"{world.load.key}-{parts}")
            ref = reference(world.session, world.open_attempt())
            for part in range(parts):
                world.write(ref, ["a"], part)
            sent.clear()
            assert len(sweep(world.session, world.load, up_to=1, by=RUN).aborted) == parts
            counts.append(len(sent))
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert counts[0] == counts[1] > 0


def test_the_ledger_is_written_before_kafka_is_told(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    world.write(ref, ["a"])
    sweep(world.session, world.load, up_to=1, by=RUN)
    row = world.session.ledger.attempt(world.load, 1)
    assert row is not None and row.verdict is Verdict.ABORT


def test_a_newer_attempt_is_not_touched(world: World) -> None:
    world.open_attempt("dag/older")
    newer = submit(world.session, world.load, owner="dag/newer")
    entry = world.write(reference(world.session, newer), ["a"])
    poll = CleanPoll(world.load, up_to=1, by="dag/older", quiet_s=0)
    while poll(world.session) is not None:
        pass
    assert world.open_ids() == [entry.transaction.transactional_id]  # type: ignore[union-attr]
    assert world.session.ledger.attempt(world.load, newer.number).is_undecided  # type: ignore[union-attr]


def test_an_id_that_the_listing_does_not_show_is_still_ended(
    world: World, hiding: HidingCoordinator
) -> None:
    manifest = world.prepare(["a"], ["b"])
    names = [t.transactional_id for t in manifest.transactions]
    assert world.open_ids() == sorted(names)
    report = sweep(replace(world.session, coordinator=hiding), world.load, up_to=1, by=RUN)
    assert sorted(report.aborted) == sorted(names)
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    assert (world.open_ids(), world.visible()) == ([], [])


def test_a_newer_attempt_is_left_to_its_own_cleanup_even_when_aborted(world: World) -> None:
    world.open_attempt("dag/older")
    newer = reference(world.session, submit(world.session, world.load, owner="dag/newer"))
    entry = world.write(newer, ["a"])
    world.session.ledger.decide_abort(newer, decided_by="dag/newer", reason="refused")
    report = sweep(world.session, world.load, up_to=1, by="dag/older")
    # an id stays open for a moment behind its abort: the report tells
    assert report.aborted == []
    assert world.open_ids() == [entry.transaction.transactional_id]  # type: ignore[union-attr]


class MovingCoordinator(Coordinator):
    """For so many listings it hides its ids, and its place changes while it does."""

    def __init__(self, wire: Wire, ledger_id: str, hidden: int, places: Iterable[CoordinatorEpochs]) -> None:
        super().__init__(wire, namespace="test", ledger_id=ledger_id)
        self.hidden = hidden
        self.answers = iter(places)
        self.listings = 0

    def list_open(self, prefix: str, *, longer_than_ms: int = -1) -> list[str]:
        self.listings += 1
        return [] if self.listings <= self.hidden else super().list_open(prefix)

    def epochs(self) -> CoordinatorEpochs | None:
        return next(self.answers, None) or super().epochs()


A, B = (frozenset({(0, 1, epoch)}) for epoch in (1, 2))


def _moving(world: World, wire: Wire, hidden: int, places: Iterable[CoordinatorEpochs] = ()) -> MovingCoordinator:
    return MovingCoordinator(wire, world.session.ledger.ledger_id, hidden, places)


def _polled(world: World, coordinator: Coordinator) -> list[str]:
    """What cleanup waited for, until it was done."""
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    session = replace(world.session, coordinator=coordinator)
    waited = []
    while (waiting_for := poll(session)) is not None:
        waited.append(waiting_for)
        assert len(waited) < 100
    return waited


@pytest.mark.parametrize("hidden", [0, 1])
def test_one_empty_listing_does_not_end_cleanup(world: World, settings: KafkaSettings, hidden: int) -> None:
    """The loser of a speculation is in no manifest: only a listing shows it, and the first one may miss it."""
    ref = reference(world.session, world.open_attempt())
    accepted, _ = world.write(ref, ["a"]), world.write(ref, ["a"])
    manifest = world.manifest(ref, [accepted])
    record_prepared(world.session, manifest)
    world.decide(manifest)
    world.commit()
    assert len(world.open_ids()) == 1
    with Wire(settings, timeout_s=60) as wire:
        moving = _moving(world, wire, hidden)
        _polled(world, moving)
        assert moving.listings >= hidden + 3  # found, and then quiet twice
    assert (world.open_ids(), world.visible()) == ([], ["a"])


@pytest.mark.parametrize("ended", ["committed", "ran-twice", "refused", "repaired"])
def test_a_commit_whose_tasks_ran_once_needs_no_second_look(
    world: World, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest names all that was ever opened, and all of it was seen to end."""
    ref = reference(world.session, world.open_attempt())
    manifest = world.manifest(ref, [world.write(ref, ["a"])])
    record_prepared(world.session, manifest, writers_left=ended == "ran-twice")
    if ended != "refused":
        world.decide(manifest)
        world.commit()
    if ended == "repaired":
        before = RepairRow(world.load, 1, 2, "lost", "copy", RepairState.UNDECIDABLE, "then", RUN, closed_at="then")
        monkeypatch.setattr(type(world.session.ledger), "repairs", lambda ledger, load: [before])
    now, pauses = [0.0], []

    def pause(seconds: float) -> None:
        now[0] += seconds
        pauses.append(seconds)

    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0, clock=lambda: now[0], pause=pause)
    waited = [poll(world.session)]
    while waited[-1] is not None:
        waited.append(poll(world.session))
        assert len(waited) < 10
    assert pauses == ([] if ended == "committed" else [APART_S])
    assert world.open_ids() == []


@pytest.mark.parametrize("places", [(A, B, B, A), (A, B, A, B)])
def test_a_listing_while_a_coordinator_moves_counts_for_nothing(
    world: World, settings: KafkaSettings, places: tuple[CoordinatorEpochs, ...]
) -> None:
    ref = reference(world.session, world.open_attempt())
    world.write(ref, ["a"])
    world.session.ledger.make_undecidable(world.load, up_to=1, decided_by=RUN, reason="test")  # else it is asked before
    with Wire(settings, timeout_s=60) as wire:
        waited = _polled(world, _moving(world, wire, 2, places))
    assert [w for w in waited if "moving or away" in w]
    assert world.open_ids() == []


def test_without_a_leader_of_the_transaction_log_no_listing_is_complete(
    world: World, settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restored_ledger, "SETTLES_S", 0.0)

    class Away(Coordinator):
        def epochs(self) -> CoordinatorEpochs | None:
            return None

    world.open_attempt()
    with Wire(settings, timeout_s=60) as wire:
        away = Away(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
        for _ in range(3):
            assert "away" in (poll(replace(world.session, coordinator=away)) or "")
    assert poll(world.session) is None


@pytest.mark.parametrize("fails", [False, True])
def test_the_quiet_time_begins_anew_behind_a_look_that_proves_nothing(
    world: World, settings: KafkaSettings, fails: bool
) -> None:
    """What was hidden meanwhile may just have begun."""

    class Away(Coordinator):
        def epochs(self) -> CoordinatorEpochs | None:
            return None

        def list_open(self, prefix: str, *, longer_than_ms: int = -1) -> list[str]:
            if fails:
                raise BrokerUnavailableError("nobody answers")
            return super().list_open(prefix, longer_than_ms=longer_than_ms)

    world.open_attempt()
    now = [0.0]
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=10, clock=lambda: now[0])
    assert poll(world.session) is not None
    now[0] = 11
    with Wire(settings, timeout_s=60) as wire:
        away = Away(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        with suppress(BrokerUnavailableError):
            assert poll(replace(world.session, coordinator=away)) is not None
    now[0] = 12
    assert poll(world.session) is not None, "a quiet period that nobody has seen"
    now[0] = 22.5
    assert poll(world.session) is None


class LooseCoordinator(Coordinator):
    """Its listing shows more than was asked for, as a broker's own filter may."""

    def list_open(self, prefix: str, *, longer_than_ms: int = -1) -> list[str]:
        return super().list_open("")


def test_a_listing_that_shows_too_much_ends_nothing_of_another_load(
    world: World, settings: KafkaSettings
) -> None:
    other = replace(world, load=LoadIdentity("test", "orders", world.load.key + "-other"))
    ref = reference(other.session, other.open_attempt())
    entry = other.write(ref, ["theirs"])
    other.session.ledger.decide_abort(ref, decided_by=RUN, reason="refused")
    world.open_attempt()
    with Wire(settings, timeout_s=60) as wire:
        loose = LooseCoordinator(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        report = sweep(replace(world.session, coordinator=loose), world.load, up_to=9, by=RUN)
    assert entry.transaction is not None
    assert entry.transaction.transactional_id in report.left_alone
    assert world.open_ids() == [entry.transaction.transactional_id]


class DeafCoordinator(Coordinator):
    """No EndTxn(commit) gets through just now."""

    def end_many(self, transactions: Iterable[PreparedTransaction], verdict: Verdict) -> dict[str, EndAnswer]:
        if verdict is Verdict.COMMIT:
            raise BrokerUnavailableError("the coordinator does not answer")
        return super().end_many(transactions, verdict)


def test_a_decided_load_that_cannot_be_rolled_forward_now_is_not_aborted(
    world: World, settings: KafkaSettings
) -> None:
    manifest = world.prepare(["a"])
    world.decide(manifest)
    with Wire(settings, timeout_s=60) as wire:
        deaf = DeafCoordinator(wire, namespace="test", ledger_id=world.session.ledger.ledger_id)
        with pytest.raises(BrokerUnavailableError):
            sweep(replace(world.session, coordinator=deaf), world.load, up_to=9, by=RUN)
    assert world.open_ids() == [t.transactional_id for t in manifest.transactions]
    world.commit()
    assert world.visible() == ["a"]
    assert world.session.ledger.repairs(world.load) == []  # a repair would hide that it was aborted


def test_known_ids_of_a_newer_attempt_are_not_touched(
    world: World, hiding: HidingCoordinator
) -> None:
    first, second = world.prepare(["a"]), world.prepare(["b"])
    assert sweep(replace(world.session, coordinator=hiding), world.load, up_to=1, by=RUN).aborted == []
    assert hiding.described == {t.transactional_id for t in first.transactions}
    assert world.open_ids() == [t.transactional_id for t in second.transactions]


def test_closed_attempts_are_not_described_again(world: World, hiding: HidingCoordinator) -> None:
    world.prepare(["a"])
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    second = world.prepare(["b"])
    assert sweep(replace(world.session, coordinator=hiding), world.load, up_to=2, by=RUN).aborted
    assert hiding.described == {t.transactional_id for t in second.transactions}


@pytest.mark.parametrize(
    "kind", ["another application", "another ledger", "another load", "a prefix of the key"]
)
def test_foreign_transactions_survive_every_cleanup(world: World, kind: str) -> None:
    ours = world.session.ledger.ledger_id
    name = {
        "another application": f"orders-service-{world.load.key}",
        "another ledger": str(TransactionalId(world.load, "0123456789", 1, 0, 0)),
        "another load": str(TransactionalId(LoadIdentity("test", "other", world.load.key), ours, 1, 0, 0)),
        "a prefix of the key": str(
            # not all digits: key-1 and a 0 is the key of a later test, which would find it committed
            TransactionalId(LoadIdentity("test", "orders", world.load.key + "0x"), ours, 1, 0, 0)
        ),
    }[kind]
    stranger = foreign_transaction(world, name)
    ref = reference(world.session, world.open_attempt())
    world.write(ref, ["ours"])
    begin(world.session, world.load, owner=RUN)  # opens attempt 2, sweeps attempt 1
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    stranger.commit_transaction(30)  # refused, had anybody touched it
    assert world.visible() == ["foreign"]


def test_a_decided_load_is_rolled_forward_not_swept(world: World) -> None:
    manifest = world.prepare(["a"], ["b", "c"])
    world.decide(manifest)
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    assert (world.visible(), world.open_ids()) == (["a", "b", "c"], [])
    assert world.session.ledger.load(world.load).state is LoadState.COMMITTED  # type: ignore[union-attr]
    assert world.session.ledger.repairs(world.load) == []


def test_a_sibling_task_attempt_of_a_decided_load_is_aborted(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    accepted = world.write(ref, ["a"])
    world.write(ref, ["a"])  # the speculative copy: flushed, never reported
    manifest = world.manifest(ref, [accepted])
    record_prepared(world.session, manifest)
    world.decide(manifest)
    world.commit()
    poll = CleanPoll(world.load, up_to=9, by=RUN, quiet_s=0)
    while poll(world.session) is not None:
        pass
    assert (world.visible(), world.open_ids()) == (["a"], [])


def test_a_decided_load_in_doubt_does_not_keep_the_sweep_from_its_siblings(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    accepted = world.write(ref, ["a"])
    world.write(ref, ["a"])  # the speculative copy
    manifest = world.manifest(ref, [accepted])
    world.session.ledger.mark_prepared(manifest)
    world.decide(manifest)
    assert accepted.transaction is not None
    lose(world, accepted.transaction)
    (written,) = accepted.writes
    end = world.session.partitions.end_offsets([written.topic_partition])[written.topic_partition]
    delete_records(world, written.partition, end)  # and nobody can tell any more
    with pytest.raises(InDoubtError):
        sweep(world.session, world.load, up_to=1, by=RUN)
    while world.open_ids():
        with pytest.raises(InDoubtError):
            sweep(world.session, world.load, up_to=1, by=RUN)


def test_a_zombie_that_writes_after_the_sweep_is_found_within_the_quiet_period(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    now = [0.0]
    poll = CleanPoll(world.load, up_to=1, by=RUN, quiet_s=5, clock=lambda: now[0])
    assert poll(world.session) is not None
    now[0] = 4
    world.write(ref, ["late"])
    while poll(world.session) is not None:
        now[0] += 1
        assert now[0] < 60
    assert now[0] >= 9  # quiet again for the whole period since the zombie was ended
    assert (world.open_ids(), world.visible()) == ([], [])


def test_a_retried_prepare_sweeps_what_its_first_try_left(world: World) -> None:
    ref = reference(world.session, world.open_attempt())
    world.write(ref, ["first try"])
    second = submit(world.session, world.load, owner=RUN)
    assert second.number == 2
    again = AttemptRef(world.load, ref.ledger_id, 2)
    manifest = world.manifest(again, [world.write(again, ["second try"])])
    assert [TransactionalId.parse(n).attempt for n in world.open_ids()] == [2]  # type: ignore[union-attr]
    record_prepared(world.session, manifest)
    world.decide(manifest)
    world.commit()
    assert world.visible() == ["second try"]


def test_cleanup_of_a_run_that_opened_nothing_touches_nothing(world: World) -> None:
    manifest = world.prepare(["a"])
    assert CleanPoll(world.load, up_to=0, by="dag/other", quiet_s=0)(world.session) is None
    world.decide(manifest)


def test_own_attempts_are_those_that_the_run_submitted(world: World) -> None:
    begin(world.session, world.load, owner="dag/a")
    submit(world.session, world.load, owner="dag/b")  # took over what a had opened
    rows = world.session.ledger.attempts(world.load)
    assert (own_number(rows, "dag/a"), own_number(rows, "dag/b"), own_number(rows, "dag/c")) == (0, 1, 0)


def test_a_load_that_the_ledger_does_not_know_is_no_error(world: World) -> None:
    assert sweep(world.session, LoadIdentity("test", "unknown", "x"), up_to=9, by=RUN).is_quiet


def test_importing_the_protocol_needs_neither_airflow_nor_spark() -> None:
    heavy = "{'airflow', 'pyspark'} & set(sys.modules)"
    code = f"import sys, airflow_kafka_eos.protocol.cleanup.poll; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
