"""What is gone from the log is prepared again: only the same records enter the decision (rule: only-equal-records)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError, RecordsGoneError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import LoadState
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.repair import reprepare
from airflow_kafka_eos.protocol.repair.recover import give_up, recover
from airflow_kafka_eos.protocol.repair.reprepare import (
    Repreparation,
    abandon_all,
    adopt_all,
    open_repreparation,
)
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, submit
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.transaction import Outcome
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import contents, decided, delete_records, lose, of, read, rows, state, write_rows
from tests.protocol.world import RUN, World

HOLD_MS = 600_000


def lost_and_gone(world: World, count: int, *lost: int, each: int = 40) -> Manifest:
    """A decided load: ``lost`` of its transactions were lost, the others are committed, and no log has the records."""
    manifest = decided(world, count, each=each)
    gone(world, manifest, *lost)
    return manifest


def gone(world: World, manifest: Manifest, *lost: int) -> None:
    for n in lost:
        lose(world, manifest.transactions[n])
    wait_until(lambda: not commit_pass(world.session, world.load, 1).open, "the commit of the others")
    for partition in (0, 1):
        # transactions stand one behind the other: up to the end of the last that is lost, from the front
        ends = [w.last_offset for w in manifest.entries[max(lost)].writes if w.partition == partition]
        delete_records(world, partition, max(ends) + 1)


def nothing_is_open(world: World) -> None:
    """Markers follow an EndTxn's answer."""
    wait_until(lambda: world.open_ids() == [], "the end of what is open")


def opened(world: World, session: Session | None = None, by: str = "prepare") -> Repreparation:
    session = session or world.session
    row = submit(session, world.load, owner=RUN)
    found = open_repreparation(session, row, by=by, hold_time_ms=HOLD_MS)
    assert found is not None
    return found


def written(world: World, again: Repreparation, batches: dict[int, pa.RecordBatch], task: int = 100) -> Manifest:
    """As Spark's tasks write it: those of Spark partitions that are not lost write nothing."""
    count = max(batches) + 1
    entries = [ManifestEntry(n, None, ()) for n in range(count)]
    for n, batch in batches.items():
        if again.ref.writes(n):
            entry = write_rows(world, again.ref.task_id(n, task + n), batch)  # type: ignore[arg-type]
            entries[n] = replace(entry, spark_partition=n)
    return world.manifest(again.ref, entries)


def same(count: int, each: int = 40) -> dict[int, pa.RecordBatch]:
    return {n: rows(n, each) for n in range(count)}


def test_commit_says_which_spark_partition_is_gone_and_who_can_write_it_again(world: World) -> None:
    manifest = lost_and_gone(world, 3, 1)
    with pytest.raises(RecordsGoneError) as caught:
        world.commit()
    for said in ("Spark partition 1 ", "20 records", "the log has no offset", "Clear prepare", "give-up"):
        assert said in str(caught.value), said
    row = world.session.ledger.load(world.load)
    assert row is not None
    assert row.state is LoadState.REPAIRING  # the source may still have them: nothing is in doubt
    assert "Spark partition 1 " in row.reason and "Clear prepare" in row.reason
    assert world.open_ids() == []
    # no new attempt (rule: one-key-loads-once)
    assert begin(world.session, world.load, owner=RUN).number == 1
    assert manifest.transactions[1].transactional_id == caught.value.transactional_id


def test_what_can_be_copied_is_committed_before_the_rest_is_called_gone(world: World) -> None:
    """What is adopted has a timeout: it must not wait for the one that is gone."""
    manifest = decided(world, 3)
    for n in (0, 2):
        lose(world, manifest.transactions[n])
    for w in manifest.entries[0].writes:
        delete_records(world, w.partition, w.last_offset + 1)
    with pytest.raises(RecordsGoneError, match="Spark partition 0 "):
        world.commit()
    assert (len(read(world, "read_committed")), world.open_ids()) == (80, [])
    assert state(world) is LoadState.REPAIRING


def test_only_what_is_lost_is_prepared_again_and_enters_the_decision(world: World) -> None:
    manifest = decided(world, 4)
    first_written = of(read(world, "read_uncommitted"), manifest, 1)
    gone(world, manifest, 1)
    before = read(world, "read_committed")
    again = opened(world)
    assert [part.spark_partition for part in again.parts] == [1]
    made = written(world, again, same(4))
    assert len(made.transactions) == 1
    adopt_all(world.session, again, made)
    world.commit()
    after = read(world, "read_committed")
    assert [m for m in after if m in before] == before
    behind = [m for m in after if m not in before]
    # keys, values, headers, in this order; and times, for these records have their own
    assert [contents(behind, p) for p in (0, 1)] == [contents(first_written, p) for p in (0, 1)]
    assert len(behind) == 40
    assert (world.open_ids(), state(world)) == ([], LoadState.COMMITTED)
    outcomes = [t.outcome for t in world.session.ledger.transactions(world.load, 1)]
    assert (outcomes.count(Outcome.COMMITTED), outcomes.count(Outcome.SUPERSEDED)) == (4, 1)
    adopted = [r for r in world.session.ledger.repairs(world.load) if r.state is RepairState.ADOPTED]
    assert [(r.transactional_id, r.lost_transactional_id) for r in adopted] == [
        (made.transactions[0].transactional_id, manifest.transactions[1].transactional_id)
    ]
    assert len(world.session.ledger.attempts(world.load)) == 1  # rule: one-key-loads-once
    row = submit(world.session, world.load, owner=RUN)
    assert open_repreparation(world.session, row, by="x", hold_time_ms=1) is None


def other_values(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = pa.array([None if v is None else v.as_py() and v.as_py()[::-1] for v in batch["value"]], pa.binary())
    return batch.set_column(batch.schema.get_field_index("value"), "value", values)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(other_values, id="other values"),
        pytest.param(lambda b: b.slice(2), id="fewer rows"),
        pytest.param(lambda b: b.take(pa.array(range(b.num_rows - 1, -1, -1))), id="another order"),
        pytest.param(lambda b: b.set_column(3, "partition", pa.array([0] * b.num_rows, pa.int32())), id="elsewhere"),
    ],
)
def test_only_an_equal_digest_enters_and_anything_else_says_both(
    world: World, change: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> None:
    lost_and_gone(world, 2, 0, 1)
    before = read(world, "read_committed")
    again = opened(world)
    made = written(world, again, {0: rows(0, 40), 1: change(rows(1, 40))})
    with pytest.raises(InDoubtError) as caught:
        adopt_all(world.session, again, made)
    said = str(caught.value)
    old, new = (
        {w.partition: w for w in writes} for writes in (again.parts[1].lost.writes, made.entries[1].writes)
    )
    for partition in (0, 1):
        of_new = new.get(partition)
        assert f"had 20 records with digest {old[partition].digest} in {world.topic}-{partition}" in said
        assert ("no records now" if of_new is None else f"{of_new.records} records with digest {of_new.digest}") in said
    assert "Spark partition 1 " in said and "Spark partition 0 " not in said
    assert "give-up" in said
    # all or nothing: what was equal is not let in either
    nothing_is_open(world)
    assert (read(world, "read_committed"), state(world)) == (before, LoadState.IN_DOUBT)
    assert {r.state for r in world.session.ledger.repairs(world.load)} == {RepairState.UNDECIDABLE}
    # cleanup's look takes nothing back from the person who is asked
    assert len(sweep(world.session, world.load, up_to=1, by="cleanup").lost) == 2
    row = world.session.ledger.load(world.load)
    assert row is not None
    assert (row.state, row.reason) == (LoadState.IN_DOUBT, caught.value.message)
    # the source is what it was again
    again = opened(world)
    adopt_all(world.session, again, written(world, again, same(2), task=200))
    world.commit()
    assert (len(read(world, "read_committed")), state(world)) == (80, LoadState.COMMITTED)


def test_a_source_with_fewer_spark_partitions_or_another_digest_is_said(world: World) -> None:
    lost_and_gone(world, 2, 1)
    again = opened(world)
    made = written(world, again, {0: rows(0, 40)})
    with pytest.raises(InDoubtError, match=r"had 20 records with digest [0-9a-f]{32} in \S+-0, and has no records now"):
        adopt_all(world.session, again, made)
    again = opened(world)
    made = written(world, again, same(2))
    with pytest.raises(InDoubtError, match="cannot be compared"):
        adopt_all(world.session, again, replace(made, digest_algorithm="another"))
    nothing_is_open(world)


def test_of_two_that_prepare_again_at_once_one_is_adopted(
    world: World, settings: KafkaSettings, ledger_url: str
) -> None:
    """Both have written everything before either asks the ledger; neither ends the other's before one is adopted."""
    lost_and_gone(world, 2, 0, 1)
    ready, failed = threading.Barrier(2), list[BaseException]()

    def run(by: str, task: int) -> None:
        try:
            with connect(settings, ledger_url, "test") as own:
                again = opened(world, own, by)
                made = written(replace(world, session=own), again, same(2), task)
                ready.wait(60)
                adopt_all(own, again, made)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(by, n)) for by, n in (("ada", 100), ("bob", 200))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    world.commit()
    assert (len(read(world, "read_committed")), world.open_ids(), state(world)) == (80, [], LoadState.COMMITTED)
    adopted = [r.lost_transactional_id for r in world.session.ledger.repairs(world.load) if r.state.value == "adopted"]
    assert len(adopted) == len(set(adopted)) == 2


def test_one_that_comes_when_another_has_brought_all_of_it_is_late_and_no_error(world: World) -> None:
    lost_and_gone(world, 2, 0, 1)
    slow, fast = opened(world, by="slow"), opened(world, by="fast")
    late = written(world, slow, same(2), 100)
    adopt_all(world.session, fast, written(world, fast, same(2), 200))
    nothing_is_open(world)
    adopt_all(world.session, slow, late)
    world.commit()
    assert (len(read(world, "read_committed")), state(world)) == (80, LoadState.COMMITTED)


def test_recover_at_the_same_time_neither_ends_nor_doubles_it(world: World) -> None:
    lost_and_gone(world, 2, 1)
    again = opened(world)
    made = written(world, again, same(2))
    with pytest.raises(RecordsGoneError):
        recover(world.session, world.load, by="ada", deadline_s=30)
    assert world.open_ids() == [made.transactions[0].transactional_id]
    adopt_all(world.session, again, made)
    assert recover(world.session, world.load, by="ada", deadline_s=30).state is LoadState.COMMITTED
    assert (len(read(world, "read_committed")), world.open_ids()) == (40, [])


def test_what_other_attempts_of_its_tasks_left_is_ended_and_what_is_decided_is_not(world: World) -> None:
    """A task of the repair was killed with its worker, and another attempt of it was accepted."""
    lost_and_gone(world, 1, 0)
    again = opened(world)
    killed = write_rows(world, again.ref.task_id(0, 7), rows(0, 10))  # type: ignore[arg-type]
    made = written(world, again, same(1))
    assert len(world.open_ids()) == 2
    adopt_all(world.session, again, made)
    assert killed.transaction is not None
    nothing_is_open(world)
    # a copy that begins behind the adoption: commit and cleanup look again
    both: tuple[Callable[[], object], ...] = (
        world.commit, lambda: sweep(world.session, world.load, up_to=1, by="c")
    )  # fmt: skip
    for n, come_by in enumerate(both):
        write_rows(world, again.ref.task_id(0, 8 + n), rows(0, 10))  # type: ignore[arg-type]
        come_by()
        nothing_is_open(world)
    assert (len(read(world, "read_committed")), state(world)) == (40, LoadState.COMMITTED)


@pytest.mark.parametrize("next_one", ["cleanup", "prepare", "give up", "give back"])
def test_a_prepare_that_is_killed_leaves_nothing_that_the_next_does_not_end(
    world: World, next_one: str
) -> None:
    lost_and_gone(world, 2, 1)
    dead = opened(world)
    written(world, dead, same(2))
    write_rows(world, dead.ref.task_id(1, 7), rows(1, 10))  # type: ignore[arg-type]
    assert len(world.open_ids()) == 2  # both of the one that is never heard of again
    # commit does not know whether it lives: it leaves it alone, and calls nothing done
    with pytest.raises(RecordsGoneError):
        world.commit()
    assert len(world.open_ids()) == 2
    match next_one:
        case "cleanup":
            wait_until(lambda: sweep(world.session, world.load, up_to=1, by="cleanup").is_quiet, "the sweep")
        case "prepare":
            again = opened(world)
            adopt_all(world.session, again, written(world, again, same(2), task=200))
        case "give up":
            give_up(world.session, world.load, by="ada", reason="loaded by hand")
        case "give back":
            abandon_all(world.session, dead, "Spark failed")
    nothing_is_open(world)
    assert len(read(world, "read_committed")) == (40 if next_one == "prepare" else 0)


def test_a_listing_that_hides_ids_closes_no_repair(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of Spark's tasks are known by listing only; while a coordinator moves, it may hide them."""
    lost_and_gone(world, 1, 0)
    again = opened(world)
    written(world, again, same(1))
    coordinator = type(world.session.coordinator)
    with monkeypatch.context() as m:
        m.setattr(coordinator, "epochs", lambda self: None)
        m.setattr(coordinator, "list_open", lambda self, *a, **k: [])
        abandon_all(world.session, again, "Spark failed")
    assert len(world.open_ids()) == 1
    newest = world.session.ledger.repairs(world.load)[-1]
    assert (newest.state, newest.closed_at) == (RepairState.UNDECIDABLE, None)
    with pytest.raises(RecordsGoneError):
        world.commit()
    nothing_is_open(world)


def test_one_that_cleanup_took_for_dead_enters_nothing_and_may_run_again(world: World) -> None:
    lost_and_gone(world, 1, 0)
    again = opened(world)
    made = written(world, again, same(1))
    sweep(world.session, world.load, up_to=1, by="cleanup")
    with pytest.raises(NotFinishedError, match="was made undecidable meanwhile"):
        adopt_all(world.session, again, made)
    nothing_is_open(world)
    assert (read(world, "read_committed"), state(world)) == ([], LoadState.REPAIRING)
    again = opened(world)
    adopt_all(world.session, again, written(world, again, same(1), task=200))
    world.commit()
    assert (len(read(world, "read_committed")), state(world)) == (40, LoadState.COMMITTED)


def test_one_that_the_broker_has_ended_meanwhile_enters_nothing(world: World) -> None:
    lost_and_gone(world, 1, 0)
    again = opened(world)
    made = written(world, again, same(1))
    lose(world, made.transactions[0])
    with pytest.raises(UndecidableError, match=r"no longer .*raise hold_time, .*\.max\.timeout\.ms.* 600 s"):
        adopt_all(world.session, again, made)
    nothing_is_open(world)
    assert state(world) is LoadState.REPAIRING
    assert world.session.ledger.repairs(world.load)[-1].state is RepairState.UNDECIDABLE


@pytest.mark.parametrize("lost", [False, True])
def test_one_that_dies_behind_the_adoption_is_rolled_forward_and_copied_if_it_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """It is decided: whoever comes next ends nothing of it. And its records are in the log again."""
    lost_and_gone(world, 1, 0)
    again = opened(world)
    made = written(world, again, same(1))
    with monkeypatch.context() as m:
        m.setattr(reprepare, "_tell_kafka", lambda *_: None)
        adopt_all(world.session, again, made)
    if lost:
        lose(world, made.transactions[0])
    world.commit()
    outcomes = [t.outcome for t in world.session.ledger.transactions(world.load, 1)]
    assert outcomes.count(Outcome.SUPERSEDED) == (2 if lost else 1)
    assert (len(read(world, "read_committed")), world.open_ids(), state(world)) == (40, [], LoadState.COMMITTED)


def test_scope_load_is_not_prepared_again_and_says_why(world: World) -> None:
    manifest = world.prepare_shared(["a", "b"], ["c"])
    world.decide(manifest)
    lose(world, manifest.transactions[0])
    wait_until(lambda: not commit_pass(world.session, world.load, 1).open, "the abort's markers")
    for entry in manifest.entries:
        for w in entry.writes:
            delete_records(world, w.partition, w.last_offset + 1)
    with pytest.raises(InDoubtError, match="in another order each time") as caught:
        world.commit()
    assert not isinstance(caught.value, RecordsGoneError)
    nothing_is_open(world)
    assert state(world) is LoadState.IN_DOUBT
    row = submit(world.session, world.load, owner=RUN)
    assert open_repreparation(world.session, row, by="x", hold_time_ms=1) is None
