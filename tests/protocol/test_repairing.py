"""What was lost after the decision is copied out of the log, under the same decision.

Rules: repair-replaces-lost-row, only-equal-records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_kafka_eos.errors import (
    ConfigurationError,
    InDoubtError,
    NotFinishedError,
    RecordsGoneError,
    UndecidableError,
)
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.producer.arrow.sender import Sender
from airflow_kafka_eos.kafka.producer.copier import Copier
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.manifest import Manifest
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.repair import copy as repairing
from airflow_kafka_eos.protocol.repair.copy import repair
from airflow_kafka_eos.protocol.repair.recover import give_up, recover
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.protocol.stages.visible import lags
from airflow_kafka_eos.transaction import Outcome
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import (
    contents,
    decided,
    delete_records,
    lose,
    mixed_up,
    of,
    read,
    rows,
    state,
    write_rows,
)
from tests.protocol.world import RUN, World


def outcomes(world: World) -> list[Outcome | None]:
    return [t.outcome for t in world.session.ledger.transactions(world.load, 1)]


def all_there_once(world: World, manifest: Manifest) -> None:
    """Readers see each record of the load once, and nothing of the load is open."""
    assert len(read(world, "read_committed")) == manifest.records
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)


def lost_pass(world: World) -> None:
    """Commit what can be, and find what is lost; without repairing it."""
    wait_until(lambda: not commit_pass(world.session, world.load, 1).open, "the commit of the others")
    assert state(world) is LoadState.REPAIRING


@pytest.mark.parametrize("writer", ["arrow", "confluent"])
def test_one_lost_of_eight_is_copied_byte_for_byte_and_only_that_one(world: World, writer: str) -> None:
    manifest = decided(world, 8, writer=writer)
    written = read(world, "read_uncommitted")
    lose(world, manifest.transactions[3])
    world.commit()
    all_there_once(world, manifest)
    visible = read(world, "read_committed")
    for n in range(8):
        if n != 3:  # these stand where they were
            assert of(visible, manifest, n) == of(written, manifest, n)
    lost = of(written, manifest, 3)
    assert of(visible, manifest, 3) == []
    behind = [m for m in visible if m not in written]
    for partition in (0, 1):
        # keys, values, headers, timestamps, in this order; at other offsets
        assert contents(behind, partition) == contents(lost, partition)
    assert len(behind) == 40
    assert outcomes(world).count(Outcome.COMMITTED) == 8
    assert outcomes(world).count(Outcome.SUPERSEDED) == 1
    (row,) = world.session.ledger.repairs(world.load)
    assert (row.state, row.lost_transactional_id) == (
        RepairState.ADOPTED,
        manifest.transactions[3].transactional_id,
    )
    assert lags(world.session, world.load) == []
    assert len(world.session.ledger.attempts(world.load)) == 1  # rule: one-key-loads-once


def test_scope_load_lost_as_a_whole_is_repaired_as_a_whole(world: World) -> None:
    manifest = world.prepare_shared(["a", "b"], ["c"])
    world.decide(manifest)
    lose(world, manifest.transactions[0])
    world.commit()
    assert (world.visible(), world.open_ids(), state(world)) == (["a", "b", "c"], [], LoadState.COMMITTED)


def test_a_repair_that_is_lost_is_repaired_in_turn(world: World) -> None:
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    lost_pass(world)
    (row,) = world.session.ledger.transactions(world.load, 1)
    assert repair(world.session, world.load, 1, row, by="r")
    new = next(t for t in world.session.ledger.transactions(world.load, 1) if t.transaction != row.transaction)
    lose(world, new.transaction)
    world.commit()
    all_there_once(world, manifest)
    assert [r.state for r in world.session.ledger.repairs(world.load)] == [RepairState.ADOPTED] * 2


def test_records_that_are_gone_leave_the_load_repairing_and_nothing_doubled(world: World) -> None:
    manifest = decided(world, 2)
    lose(world, manifest.transactions[1])
    lost_pass(world)
    first = manifest.entries[1].writes[0]
    delete_records(world, first.partition, first.first_offset + 1)
    before = [m for m in read(world, "read_committed") if m[0] != first.partition]
    with pytest.raises(RecordsGoneError) as caught:
        world.commit()
    said = str(caught.value)
    assert f"{first.records} records" in said and f"offsets {first.first_offset} to {first.last_offset}" in said
    assert "give-up" in said and "Clear prepare" in said
    assert (world.open_ids(), state(world)) == ([], LoadState.REPAIRING)
    assert [m for m in read(world, "read_committed") if m[0] != first.partition] == before
    (row,) = world.session.ledger.repairs(world.load)
    assert row.state is RepairState.UNDECIDABLE
    with pytest.raises(RecordsGoneError):
        recover(world.session, world.load, by="ada", deadline_s=30)  # still gone


def test_records_that_are_not_what_was_recorded_are_not_let_in(world: World) -> None:
    """As when the log was truncated and written anew, or the ledger altered: only an equal digest enters."""
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    lost_pass(world)
    (row,) = world.session.ledger.transactions(world.load, 1)
    other = tuple(replace(w, digest="0" * 32) for w in row.writes)
    with pytest.raises(InDoubtError, match=r"digest [0-9a-f]{32}, recorded were 20 with digest 0{32}"):
        repair(world.session, world.load, 1, replace(row, writes=other), by="r")
    assert (read(world, "read_committed"), world.open_ids(), state(world)) == ([], [], LoadState.IN_DOUBT)
    # the ledger was right all the time: a person has it looked at again
    assert recover(world.session, world.load, by="ada", deadline_s=30).state is LoadState.COMMITTED
    all_there_once(world, manifest)


def test_of_two_repairers_with_everything_ready_one_is_adopted(
    world: World, settings: KafkaSettings, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have copied and flushed before either asks the ledger."""
    manifest = decided(world, 3)
    lose(world, manifest.transactions[1])
    lost_pass(world)
    lost = next(t for t in world.session.ledger.transactions(world.load, 1) if t.outcome is Outcome.LOST)
    ready = threading.Barrier(2)
    copy = Copier.copy

    def copy_and_wait(*arguments: object) -> object:
        done = copy(*arguments)  # type: ignore[arg-type]
        ready.wait(30)
        return done

    monkeypatch.setattr(Copier, "copy", copy_and_wait)
    won: list[bool] = []

    def run(by: str) -> None:
        with connect(settings, ledger_url, "test") as own:
            won.append(repair(own, world.load, 1, lost, by=by))

    threads = [threading.Thread(target=run, args=(by,)) for by in ("ada", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won) == [False, True]
    assert len(world.open_ids()) == 1  # the winner's, decided
    monkeypatch.undo()
    world.commit()
    all_there_once(world, manifest)


@pytest.mark.parametrize("step", ["_initialise", "_copy_partition"])
def test_a_repairer_that_is_overtaken_while_it_copies_leaves_it_at_that(
    world: World, settings: KafkaSettings, ledger_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another is adopted, and ends what this one has begun by then: it is fenced, or late, and neither is an error."""
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    lost_pass(world)
    (lost,) = world.session.ledger.transactions(world.load, 1)
    real, flush = getattr(Copier, step), Sender.flush

    def overtaken(self: Copier, *arguments: object) -> object:
        monkeypatch.setattr(Copier, step, real)
        done = real(self, *arguments)
        if step == "_copy_partition":
            assert self._sender is not None
            flush(self._sender)
        with connect(settings, ledger_url, "test") as other:
            assert repair(other, world.load, 1, lost, by="the faster one")
        return done

    monkeypatch.setattr(Copier, step, overtaken)
    assert not repair(world.session, world.load, 1, lost, by="the slower one")
    world.commit()
    all_there_once(world, manifest)
    states = [r.state for r in world.session.ledger.repairs(world.load)]
    assert states == [RepairState.UNDECIDABLE, RepairState.ADOPTED]


def test_a_straggler_whose_repair_was_closed_is_found_by_the_sweep(world: World) -> None:
    """It had nothing open when its repair was taken for a dead one's, and begins to write all the same."""
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    lost_pass(world)
    (lost,) = world.session.ledger.transactions(world.load, 1)
    opened = world.session.ledger.open_repair(
        world.load, 1, lost.transaction.transactional_id, opened_by="straggler"
    )
    assert opened is not None
    world.commit()
    (row, _) = world.session.ledger.repairs(world.load)
    assert (row.state, row.closed_at is None) == (RepairState.UNDECIDABLE, False)
    name = TransactionalId.parse(opened.transactional_id)
    assert name is not None
    write_rows(world, name, rows(0, 4))
    assert world.open_ids() == [opened.transactional_id]
    wait_until(lambda: sweep(world.session, world.load, up_to=1, by="cleanup").is_quiet, "the sweep")
    all_there_once(world, manifest)


def test_two_committers_of_a_load_with_losses_at_once(
    world: World, settings: KafkaSettings, ledger_url: str
) -> None:
    manifest = decided(world, 4)
    for n in (0, 2):
        lose(world, manifest.transactions[n])
    states: list[LoadState] = []

    def run(by: str) -> None:
        with connect(settings, ledger_url, "test") as own:
            states.append(recover(own, world.load, by=by, deadline_s=60).state)

    threads = [threading.Thread(target=run, args=(by,)) for by in ("ada", "bob", "eve")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert states == [LoadState.COMMITTED] * 3
    world.commit()
    all_there_once(world, manifest)


class Killed(BaseException):
    """Takes the place of a process's death where the test goes on in the same process."""


def _repairer_that_dies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repairer that has copied and flushed all, and is never heard of again: no clean-up of its own."""

    def die(*arguments: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as m:
        m.setattr(type(world.session.ledger), "adopt", die)
        m.setattr(repairing, "_abandon", lambda *arguments: None)
        with pytest.raises(Killed):
            world.commit()
    assert len(world.open_ids()) == 1


def test_sweeping_ends_an_abandoned_repair_and_no_decided_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    _repairer_that_dies(world, monkeypatch)
    report = sweep(world.session, world.load, up_to=1, by="cleanup")
    (row,) = world.session.ledger.repairs(world.load)
    assert (report.aborted, row.state) == ([row.transactional_id], RepairState.UNDECIDABLE)
    wait_until(lambda: world.open_ids() == [], "the end of the repair")
    assert sweep(world.session, world.load, up_to=1, by="cleanup").is_quiet
    (row,) = world.session.ledger.repairs(world.load)
    assert row.closed_at is not None
    # one that is adopted is decided: a sweep rolls it forward
    (lost,) = world.session.ledger.transactions(world.load, 1)
    assert repair(world.session, world.load, 1, lost, by="r")
    report = sweep(world.session, world.load, up_to=1, by="cleanup")
    assert report.aborted == []
    wait_until(lambda: sweep(world.session, world.load, up_to=1, by="c").is_quiet, "the roll forward")
    all_there_once(world, manifest)


def test_a_repair_that_is_swept_while_it_copies_enters_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = decided(world, 1)
    lose(world, manifest.transactions[0])
    lost_pass(world)
    adopt = type(world.session.ledger).adopt

    def swept_before(*arguments: object, **named: object) -> object:
        sweep(world.session, world.load, up_to=1, by="cleanup")
        return adopt(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.session.ledger), "adopt", swept_before)
    (lost,) = world.session.ledger.transactions(world.load, 1)
    assert not repair(world.session, world.load, 1, lost, by="r")
    monkeypatch.undo()
    wait_until(lambda: world.open_ids() == [], "the end of the repair")
    assert read(world, "read_committed") == []
    world.commit()
    all_there_once(world, manifest)


def test_mixed_markers_stop_a_load_before_anything_is_repaired(world: World) -> None:
    manifest = decided(world, 3)
    lose(world, manifest.transactions[0])
    mixed = manifest.transactions[1].transactional_id
    session = world.session
    blind = mixed_up(session, manifest.transactions[1])
    with pytest.raises(InDoubtError, match=r"-0 \(.*\) commit, \S+-1 \(.*\) abort.*its coordinator shows") as caught:
        replace(world, session=blind).commit()
    assert caught.value.transactional_id == mixed
    assert (session.ledger.repairs(world.load), state(world)) == ([], LoadState.IN_DOUBT)
    # the evidence is clear now
    assert recover(session, world.load, by="ada", deadline_s=60).state is LoadState.COMMITTED
    all_there_once(world, manifest)


def test_a_load_that_is_given_up_is_left_as_it_is(world: World) -> None:
    manifest = decided(world, 3)
    lose(world, manifest.transactions[0])
    session = world.session
    row = give_up(session, world.load, by="ada", reason="loaded by hand")
    assert (row.state, row.reason) == (LoadState.GIVEN_UP, "given up by ada: loaded by hand")
    assert outcomes(world) == [Outcome.LOST, Outcome.OPEN, Outcome.OPEN]
    open_ids = world.open_ids()
    assert len(open_ids) == 2
    for call in (
        lambda: world.commit(),
        lambda: commit_pass(session, world.load, 1),
        lambda: recover(session, world.load, by="bob", deadline_s=30),
    ):
        with pytest.raises(UndecidableError, match="given up by ada"):
            call()
    # neither cleanup nor another run touches it; ending what is open is a person's business
    assert sweep(session, world.load, up_to=1, by="cleanup").aborted == []
    assert world.open_attempt().number == 1
    assert (world.open_ids(), read(world, "read_committed")) == (open_ids, [])
    assert give_up(session, world.load, by="bob", reason="too").reason == row.reason


def test_giving_up_and_recovering_want_a_decided_load(world: World) -> None:
    with pytest.raises(ConfigurationError, match="does not know this load"):
        recover(world.session, world.load, by="ada", deadline_s=1)
    world.prepare(["a"])
    calls: tuple[Callable[[], object], ...] = (
        lambda: recover(world.session, world.load, by="ada", deadline_s=1),
        lambda: give_up(world.session, world.load, by="ada", reason="x"),
    )
    for call in calls:
        with pytest.raises(UndecidableError, match="no commit decision"):
            call()
    with pytest.raises(ConfigurationError, match="by is empty"):
        give_up(world.session, world.load, by=" ", reason="x")
    assert sweep(world.session, world.load, up_to=1, by=RUN).aborted


def test_a_committed_load_is_left_as_it_is(world: World) -> None:
    world.load_all(["a"])
    assert recover(world.session, world.load, by="ada", deadline_s=1).state is LoadState.COMMITTED
    with pytest.raises(UndecidableError, match="COMMITTED cannot become GIVEN_UP"):
        give_up(world.session, world.load, by="ada", reason="x")


def test_at_the_deadline_nothing_is_lost_and_the_error_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = decided(world, 2)
    for t in manifest.transactions:
        lose(world, t)
    with pytest.raises(NotFinishedError, match=r"commit marker, and 1 for their repair.*The decision stands"):
        world.commit(deadline_s=0)
    # what was copied has a timeout, and is not left to whoever comes next
    wait_until(lambda: world.open_ids() == [], "the commit of the first")
    world.commit()
    all_there_once(world, manifest)
