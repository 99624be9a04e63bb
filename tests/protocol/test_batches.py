"""Micro-batches of a query, at a real broker and a real ledger; what Spark does is done here by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update

from airflow_kafka_eos.errors import (
    InDoubtError,
    OtherCheckpointError,
    OtherClusterError,
    RecordsGoneError,
    SupersededError,
    UndecidableError,
)
from airflow_kafka_eos.ledger import tables
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.ledger.slots import text_of
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionNaming, Verdict
from airflow_kafka_eos.manifest import Manifest, ManifestEntry
from airflow_kafka_eos.micro_batch import MicroBatch, StreamRun
from airflow_kafka_eos.protocol.cleanup.namespace import choose, clean, find, is_abandoned
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.repair.recover import give_up
from airflow_kafka_eos.protocol.stages import batches
from airflow_kafka_eos.protocol.stages.begin import reference
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import delete_records, lose
from tests.protocol.pooled_world import PooledWorld
from tests.protocol.world import World

pytestmark = pytest.mark.broker

_numbers = count(1)
FIRST, SECOND = StreamRun("/checkpoint", "driver 1"), StreamRun("/checkpoint", "driver 2")
DAY = timedelta(days=1)


@dataclass
class Query:
    """A query of the world's topic, with a name of its own; offsets are texts."""

    world: World
    name: str
    query_id: str

    def batch(self, number: int, offsets: str | None = None, before: str | None = None) -> MicroBatch:
        return MicroBatch(
            "test",
            self.name,
            self.query_id,
            number,
            offsets or f"to {number}",
            (before or f"to {number - 1}") if number else None,
        )

    def begin(self, batch: MicroBatch, run: StreamRun = FIRST, **more: Any) -> AttemptRow:
        row = self.ask(batch, run, **more)
        assert row is not None
        return row

    def ask(
        self, batch: MicroBatch, run: StreamRun = FIRST, *, writers_have_s: float = 600, **more: Any
    ) -> AttemptRow | None:
        turn = self.turn(batch, run, writers_have_s=writers_have_s, **more)
        return None if turn is None else turn.row

    def turn(
        self, batch: MicroBatch, run: StreamRun = FIRST, *, writers_have_s: float = 600, **more: Any
    ) -> batches.Turn | None:
        return batches.begin_batch(
            self.world.session,
            batch,
            run,
            **{"naming": TransactionNaming.INCREMENTING} | more,
            writers_have_ms=int(writers_have_s * 1000),
            deadline_s=30,
        )

    def write(self, row: AttemptRow, *parts: Sequence[str]) -> Manifest:
        ref = reference(self.world.session, row)
        return self.world.manifest(ref, [self.world.write(ref, part, n) for n, part in enumerate(parts)])

    def decide(
        self, batch: MicroBatch, manifest: Manifest, run: StreamRun = FIRST, *, writers_left: bool = True
    ) -> None:
        batches.decide_batch(
            self.world.session, batch, run, manifest, writers_left=writers_left, margin_s=200, deadline_s=30
        )

    def load(self, batch: MicroBatch, *parts: Sequence[str], run: StreamRun = FIRST) -> None:
        self.decide(batch, self.write(self.begin(batch, run), *parts), run)

    @property
    def decided(self) -> int | None:
        row = self.world.session.ledger.stream("test", self.name)
        return None if row is None else row.decided


@pytest.fixture
def query(world: World) -> Query:
    number = next(_numbers)
    return Query(world, f"query-{number}", str(UUID(int=number)))


def nothing_open(query: Query) -> None:
    """What was ended has its markers, or will at once."""
    wait_until(lambda: query.world.open_ids() == [], "the end of what was open")


class Died(BaseException):
    """The driver's end."""


def died(*given: object, **more: object) -> None:
    raise Died


def test_batches_of_a_query_are_there_once_and_each_is_a_load(query: Query) -> None:
    query.load(query.batch(0), ["a", "b"], ["c"])
    query.load(query.batch(1), ["d"])
    query.load(query.batch(2))  # no task had a row
    assert query.world.visible() == ["a", "b", "c", "d"]
    ledger = query.world.session.ledger
    assert [ledger.state(query.batch(n).load) for n in range(3)] == [LoadState.COMMITTED] * 3
    assert query.decided == 2


def test_a_decided_batch_is_rolled_forward_and_never_written_again(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = query.batch(0)
    manifest = query.write(query.begin(batch), ["a"], ["b"])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(batches, "commit", died)
        query.decide(batch, manifest)
    assert query.world.visible() == []
    row = query.begin(batch, SECOND)
    assert (row.verdict, row.number) == (Verdict.COMMIT, 1)
    assert query.world.visible() == ["a", "b"]
    assert query.begin(batch, SECOND).verdict is Verdict.COMMIT
    query.load(query.batch(1), ["c"], run=SECOND)
    assert query.world.visible() == ["a", "b", "c"]


def test_a_decided_batch_whose_records_are_gone_is_given_up_and_the_query_goes_on(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = query.batch(0)
    manifest = query.write(query.begin(batch), ["a"], ["b"])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(batches, "commit", died)
        query.decide(batch, manifest)
    lose(query.world, manifest.transactions[1])
    wait_until(lambda: commit_pass(query.world.session, batch.load, 1).open == [], "the markers of the rest")
    (written,) = manifest.entries[1].writes
    (other,) = manifest.entries[0].writes
    delete_records(query.world, written.partition, written.last_offset + 1)
    with pytest.raises(RecordsGoneError) as refused:
        query.begin(batch, SECOND)
    row = query.world.session.ledger.load(batch.load)
    assert row is not None and row.state is LoadState.REPAIRING
    for said in (refused.value.remedy, row.reason):
        assert "loads give-up" in said and "prepare" not in said
    give_up(query.world.session, batch.load, by="ada", reason="written by hand")
    assert query.begin(batch, SECOND).verdict is Verdict.COMMIT
    query.load(query.batch(1), ["c"], run=SECOND)
    assert query.world.visible() == (["a", "c"] if other.partition != written.partition else ["c"])


def test_a_batch_that_is_decided_behind_the_sweep_is_rolled_forward(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same driver, whose query was stopped and started again while its commit was under way."""
    batch, sweep_earlier = query.batch(0), batches.sweep_earlier
    manifest = query.write(query.begin(batch), ["a"])

    def decided_behind_it(*given: Any, **more: Any) -> None:
        sweep_earlier(*given, **more)
        with monkeypatch.context() as patch, pytest.raises(Died):
            patch.setattr(batches, "commit", died)
            query.decide(batch, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "sweep_earlier", decided_behind_it)
        assert query.begin(batch).verdict is Verdict.COMMIT
    assert query.world.visible() == ["a"]


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_that_gets_a_slot_back_knows_its_ids_as_they_were_leased(query: Query, first: bool) -> None:
    """Else its tasks would take them for those of a task that runs twice, and each batch would use up new ones."""
    pooling = TransactionNaming.POOLING
    turn = query.turn(query.batch(0), naming=pooling)
    assert turn is not None and turn.slot == {}
    ref = reference(query.world.session, turn.row)
    entry = ManifestEntry(0, *query.world.write_arrow(ref.task_id(0, 0), ["a"]))
    query.decide(query.batch(0), query.world.manifest(ref, [entry]), writers_left=False)
    again = query.turn(query.batch(1), naming=pooling, first=first)
    assert again is not None and again.row.slot == turn.row.slot
    assert [(name, shown.coordinator_state.is_committed) for name, shown in again.slot.items()] == [
        (str(ref.task_id(0, 0)), True)
    ]
    assert query.world.session.coordinator.describe(again.slot) == again.slot


def test_what_a_zombie_of_an_author_s_load_begins_under_a_free_slot_of_the_name_is_ended_before_it_is_leased(
    query: Query,
) -> None:
    """Slots are the name's: the lease's look would put it in doubt, and a person would have to come."""
    pooling = TransactionNaming.POOLING
    query.load(query.batch(0), ["a"])
    world = query.world
    author = PooledWorld(**vars(world) | {"load": LoadIdentity("test", query.name, "by hand")})
    late = author.task_id(author.driver())
    author.clean()
    author.write_arrow(late, ["late"])
    assert world.open_ids() == [str(late)]
    ledger, moment = world.session.ledger, text_of(world.session.ledger.clock())
    ours = update(tables.slots).where(tables.slots.c.load_name == query.name).values(quarantined_until=moment)
    ledger.database.write(lambda connection: connection.execute(ours))
    turn = query.turn(query.batch(1), naming=pooling, first=False)
    assert turn is not None and turn.row.slot == 0
    assert world.open_ids() == []


def test_done_is_said_behind_the_decision_only(query: Query) -> None:
    batch = query.batch(0)
    # no writer is left, so that nothing else looks at what is open
    query.decide(batch, query.write(query.begin(batch), ["a"]), writers_left=False)
    assert query.decided == 0
    assert query.world.session.ledger.state(batch.load) is LoadState.COMMITTED


@pytest.mark.parametrize("where", ["record_prepared", "ask", "decide_commit"])
def test_what_a_dead_run_has_left_is_ended_when_the_next_one_begins(
    query: Query, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    batch = query.batch(0)
    manifest = query.write(query.begin(batch), ["a"], ["b"])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Ledger if where == "decide_commit" else batches, where, died)
        query.decide(batch, manifest)
    assert len(query.world.open_ids()) == 2, "the ledger is written before Kafka is told"
    row = query.begin(batch, SECOND)
    nothing_open(query)
    assert row.number == 2
    query.decide(batch, query.write(row, ["a"], ["b"]), SECOND)
    assert query.world.visible() == ["a", "b"]


def test_writers_have_all_of_their_time_however_long_the_sweep_takes(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance counts from when the attempt is opened: with a deadline of before, it would end what is at work."""
    swept_ms = 0.0

    def sweep_earlier(*given: Any, **more: Any) -> bool:
        nonlocal swept_ms
        found = real(*given, **more)
        time.sleep(0.1)
        swept_ms = time.time() * 1000
        return found

    real = batches.sweep_earlier
    monkeypatch.setattr(batches, "sweep_earlier", sweep_earlier)
    turn = query.turn(query.batch(0), writers_have_s=600)
    assert turn is not None and swept_ms
    assert turn.deadline_ms >= int(swept_ms) + 600_000
    as_the_ledger_has_it = text_of(datetime.fromtimestamp(turn.deadline_ms / 1000, UTC))
    assert turn.row.writers_until == as_the_ledger_has_it


def test_what_is_left_of_another_batch_is_ended_too(query: Query) -> None:
    """Of a query whose name was set free: nobody asks for its batch again."""
    query.load(query.batch(0), ["a"])
    query.write(query.begin(query.batch(1)), ["lost"])
    ledger = query.world.session.ledger
    ledger.set_stream("test", query.name, forget_query=True)
    other = replace(query, query_id=str(UUID(int=next(_numbers) + 10**6)))
    other.load(other.batch(0), ["b"], run=SECOND)
    nothing_open(query)
    assert query.world.visible() == ["a", "b"]


def test_a_batch_is_decided_only_while_its_attempt_is_the_newest(query: Query) -> None:
    batch = query.batch(0)
    first = query.write(query.begin(batch), ["a"])
    second = query.begin(batch)  # the same driver, whose query was started again
    with pytest.raises(UndecidableError, match="aborted"):
        query.decide(batch, first)
    assert query.world.visible() == []
    query.decide(batch, query.write(second, ["a"]))
    assert query.world.visible() == ["a"]


def test_a_run_that_is_not_the_newest_neither_begins_nor_decides(query: Query) -> None:
    batch = query.batch(0)
    query.load(batch, ["a"])
    after = query.batch(1)
    zombie = query.write(query.begin(after), ["zombie"])
    query.world.session.ledger.bind_stream(after, SECOND)
    with pytest.raises(SupersededError, match="this one is run 1, the newest is 2"):
        query.decide(after, zombie)
    with pytest.raises(SupersededError):
        query.begin(after)
    query.load(after, ["b"], run=SECOND)
    assert query.world.visible() == ["a", "b"]
    nothing_open(query)


def test_a_name_is_one_querys(query: Query) -> None:
    query.load(query.batch(0), ["a"])
    other = replace(query, query_id=str(UUID(int=next(_numbers) + 10**6)))
    with pytest.raises(OtherCheckpointError, match="the checkpoint was deleted"):
        other.begin(other.batch(0))
    with pytest.raises(OtherCheckpointError, match="a copy of it") as refused:
        query.begin(query.batch(1), StreamRun("/the copy", "driver 1"))
    assert refused.value.remedy.endswith(" --checkpoint '/the copy'`"), "to be pasted as it is"
    assert query.world.session.ledger.state(other.batch(0).load) is None
    query.load(query.batch(1), ["b"])
    assert query.world.visible() == ["a", "b"]


def test_a_batch_is_begun_in_its_turn_only(query: Query) -> None:
    query.load(query.batch(0), ["a"])
    with pytest.raises(InDoubtError, match="is not the next one: the ledger has those up to 0"):
        query.begin(query.batch(2))
    assert query.world.session.ledger.state(query.batch(2).load) is None
    manifest = query.write(query.begin(query.batch(1)), ["b"])
    query.world.session.ledger.set_stream("test", query.name, decided=1)  # somebody who did not stop it first
    with pytest.raises(InDoubtError, match="is not the next one"):
        query.decide(query.batch(1), manifest)
    assert query.world.visible() == ["a"]


def test_an_older_run_ends_nothing_of_the_newer_one(query: Query) -> None:
    query.load(query.batch(0), ["a"])
    manifest = query.write(query.begin(query.batch(1), SECOND), ["b"])
    for number in (0, 1, 2):
        with pytest.raises(SupersededError):
            query.begin(query.batch(number), FIRST, first=False)
    query.decide(query.batch(1), manifest, SECOND)
    assert query.world.visible() == ["a", "b"]


def test_a_run_that_hangs_behind_its_look_ends_nothing_of_its_successor(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, value in enumerate("ab"):
        query.load(query.batch(number), [value])
    manifests: list[Manifest] = []

    def hangs(*given: Any) -> None:
        monkeypatch.setattr(batches, "check_cluster", check_cluster)
        manifests.append(query.write(query.begin(query.batch(2), SECOND), ["c"]))

    monkeypatch.setattr(batches, "check_cluster", hangs)
    with pytest.raises(SupersededError):
        query.begin(query.batch(1), FIRST, first=False)
    query.decide(query.batch(2), manifests[0], SECOND)
    assert query.world.visible() == ["a", "b", "c"]


def test_a_batch_that_a_person_knows_of_is_passed_over(query: Query) -> None:
    """Behind a ledger that was put back: the topics have batch 1, and it does not."""
    query.load(query.batch(0), ["a"])
    ledger = query.world.session.ledger
    query.write(query.begin(query.batch(1)), ["a dead driver's"])
    ledger.set_stream("test", query.name, decided=1)
    assert query.ask(query.batch(1), SECOND) is None
    nothing_open(query)
    assert query.ask(query.batch(1), SECOND) is None, "until Spark has noted it as done"
    with pytest.raises(OtherCheckpointError, match=r"batch 1 of .* was decided with other offsets"):
        query.ask(query.batch(1, "further than before"), SECOND)
    query.load(query.batch(2), ["c"], run=SECOND)
    assert query.world.visible() == ["a", "c"]


def test_what_a_person_has_said_of_a_query_can_be_taken_back(query: Query) -> None:
    query.load(query.batch(0), ["a"])
    ledger = query.world.session.ledger
    ledger.set_stream("test", query.name, decided=2)
    with pytest.raises(InDoubtError, match="older than what a person has said"):
        query.begin(query.batch(1))
    ledger.set_stream("test", query.name, decided=1)
    assert query.ask(query.batch(1)) is None
    ledger.set_stream("test", query.name, decided=0)
    query.load(query.batch(1), ["b"])
    query.load(query.batch(2), ["c"])
    assert query.world.visible() == ["a", "b", "c"]


def test_what_was_given_up_is_ended_and_a_decided_batch_is_not(query: Query) -> None:
    batch = query.batch(0)
    query.write(row := query.begin(batch), ["a"])
    assert batches.abort_batch(query.world.session, reference(query.world.session, row), FIRST)
    nothing_open(query)
    query.decide(batch, query.write(row := query.begin(batch), ["a"]))
    assert not batches.abort_batch(query.world.session, reference(query.world.session, row), FIRST)
    assert query.world.visible() == ["a"]


def test_what_a_dead_task_of_a_batch_has_open_is_ended_with_the_batch(query: Query) -> None:
    """Its worker was killed behind its flush, and Spark has run the task once more: readers are not to wait for it."""
    batch = query.batch(0)
    row = query.begin(batch)
    query.world.write(reference(query.world.session, row), ["dead"])
    query.decide(batch, query.write(row, ["a"]))
    nothing_open(query)
    assert query.world.visible() == ["a"]


def test_what_a_task_opens_behind_its_committed_batch_is_ended_when_the_next_one_begins(query: Query) -> None:
    """A worker that hung, or a driver that died between a batch's commit and the look behind it."""
    batch = query.batch(0)
    row = query.begin(batch)
    query.decide(batch, query.write(row, ["a"]))
    query.world.write(reference(query.world.session, row), ["late"])
    assert query.begin(batch, SECOND).verdict is Verdict.COMMIT  # Spark asks for it again, and for no other
    nothing_open(query)
    assert query.world.visible() == ["a"]


def test_a_checkpoint_that_was_put_back_is_found_out(query: Query) -> None:
    for number, value in enumerate("abc"):
        query.load(query.batch(number), [value])
    # with the same offsets it goes on where it was
    assert query.begin(query.batch(1), SECOND).verdict is Verdict.COMMIT
    with pytest.raises(OtherCheckpointError, match=r"batch 1 of .* was decided with other offsets"):
        query.begin(query.batch(1, "further than before"), SECOND)
    with pytest.raises(OtherCheckpointError, match=r"batch 2 of .* was decided with other offsets"):
        query.begin(query.batch(3, before="further than before"), SECOND)
    query.load(query.batch(3), ["d"], run=SECOND)
    assert query.world.visible() == ["a", "b", "c", "d"]


def test_a_batch_is_decided_in_the_cluster_only_that_it_was_begun_in(query: Query) -> None:
    batch, ledger = query.batch(0), query.world.session.ledger
    row = query.begin(batch)
    manifest = query.write(row, ["a"])
    its = update(tables.attempts).where(tables.attempts.c.submitted_by == row.submitted_by)
    ledger.database.write(lambda connection: connection.execute(its.values(cluster_id="another")))
    with pytest.raises(OtherClusterError):
        query.decide(batch, manifest)
    (left,) = ledger.attempts(batch.load)
    assert left.is_undecided and query.decided == -1
    ledger.database.write(lambda connection: connection.execute(its.values(cluster_id=row.cluster_id)))
    query.decide(batch, manifest)
    assert query.decided == 0


def test_a_batch_is_begun_in_the_cluster_of_the_one_before_only(query: Query) -> None:
    batch = query.batch(0)
    row = query.begin(batch)
    ledger = query.world.session.ledger
    elsewhere = update(tables.attempts).where(tables.attempts.c.submitted_by == row.submitted_by)
    ledger.database.write(lambda connection: connection.execute(elsewhere.values(cluster_id="another")))
    with pytest.raises(OtherClusterError):
        query.begin(batch)
    assert ledger.attempts(batch.load)[0].is_undecided, "it may be at work there"
    ledger.forget_cluster("another")
    query.load(batch, ["a"])


def test_maintenance_beside_a_query_at_work_ends_nothing_of_it(query: Query) -> None:
    batch = query.batch(0)
    manifest = query.write(query.begin(batch), ["a"])
    left = find(query.world.session, abandoned_after=DAY)
    assert batch.load not in left.loads
    clean(query.world.session, {batch.load: left.loads.get(batch.load, 0)}, by="maintenance", quiet_s=0, deadline_s=30)
    query.decide(batch, manifest)
    assert query.world.visible() == ["a"]


def test_maintenance_ends_what_a_dead_driver_has_left_once_its_hold_time_is_over(query: Query) -> None:
    """With two-phase commit no broker would."""
    batch = query.batch(0)
    row = query.begin(batch)
    query.write(row, ["a"])
    assert row.writers_until is not None
    assert row.submitted_at is not None
    until, began = (datetime.fromisoformat(at) for at in (row.writers_until, row.submitted_at))
    # one that is begun at the end of that has all of its hold time
    now = until + (until - began)
    assert not is_abandoned(row, now - timedelta(seconds=1), timedelta(0))
    assert choose([row], [], now, DAY) == {batch.load: 1}
    clean(query.world.session, {batch.load: 1}, by="maintenance", quiet_s=0, deadline_s=30)
    nothing_open(query)
    query.load(batch, ["a"], run=SECOND)
    assert query.world.visible() == ["a"]


def test_an_authors_load_of_the_same_name_is_left_to_its_run(query: Query) -> None:
    load = LoadIdentity("test", query.name, "2026-01-01")
    world = replace(query.world, load=load)
    manifest = world.prepare(["authors"])
    query.load(query.batch(0), ["a"])
    world.decide(manifest)
    world.commit()
    assert query.world.visible() == ["a", "authors"]


def test_a_load_whose_key_looks_like_a_batchs_is_its_authors(query: Query) -> None:
    load = LoadIdentity("test", query.name, f"{query.query_id}-7")
    world = replace(query.world, load=load)
    manifest = world.prepare(["authors"])
    (row,) = world.session.ledger.attempts(load)
    row = replace(row, writers_until="2026-01-01T00:00:00+00:00")
    assert not is_abandoned(row, datetime.now().astimezone(), DAY), "however long ago its writers' deadline was"
    query.load(query.batch(0), ["a"])
    other = replace(query, query_id=str(UUID(int=next(_numbers) + 10**6)))
    query.world.session.ledger.set_stream("test", query.name, forget_query=True)
    other.load(other.batch(0), ["b"], run=SECOND)
    world.decide(manifest)
    world.commit()
    assert query.world.visible() == ["a", "authors", "b"]


def test_maintenance_behind_a_dead_driver_rolls_forward_what_is_decided(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = query.batch(0)
    manifest = query.write(query.begin(batch), ["a"], ["b"])
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(batches, "commit", died)
        query.decide(batch, manifest)
    loads = find(query.world.session, abandoned_after=DAY).loads
    swept = clean(query.world.session, {batch.load: loads[batch.load]}, by="maintenance", quiet_s=0, deadline_s=30)
    assert [one.error for one in swept] == [None]
    assert query.world.visible() == ["a", "b"]
    assert query.begin(batch, SECOND).verdict is Verdict.COMMIT
