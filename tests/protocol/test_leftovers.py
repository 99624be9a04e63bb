"""What no run is left to sweep: chosen by rule, swept to the end; live attempts and strangers are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.errors import BrokerUnavailableError, InDoubtError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow, RepairRow, RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.protocol.cleanup.namespace import (
    Leftovers,
    abandoned_at,
    choose,
    clean,
    find,
    is_abandoned,
    is_repaired,
)
from airflow_kafka_eos.protocol.cleanup.sweep import needs_quiet_period
from airflow_kafka_eos.protocol.repair.reprepare import adopt_all
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, reference
from tests.protocol.lost import mixed_up
from tests.protocol.test_repreparing import lost_and_gone, opened, same, written
from tests.protocol.world import RUN, World, foreign_transaction

DAY = timedelta(days=1)
LOAD, OTHER = (LoadIdentity("test", "orders", key) for key in ("1", "2"))
NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)


def attempt(number: int, verdict: Verdict | None, load: LoadIdentity = LOAD, *, days: float = 5) -> AttemptRow:
    opened = (NOW - timedelta(days=days)).isoformat(timespec="microseconds")
    return AttemptRow(load, number, "dag/run", opened, verdict=verdict)


@pytest.mark.parametrize(
    ("unfinished", "holders", "chosen"),
    [
        ([], [], {}),
        ([attempt(1, Verdict.ABORT)], [], {LOAD: 1}),
        ([attempt(1, Verdict.COMMIT)], [], {LOAD: 1}),
        ([attempt(1, Verdict.ABORT), attempt(2, Verdict.COMMIT, OTHER)], [], {LOAD: 1, OTHER: 2}),
        ([attempt(1, None, days=2)], [], {LOAD: 1}),
        ([attempt(1, None, days=0.5)], [], {}),
        ([attempt(1, Verdict.ABORT), attempt(2, None, days=0.5)], [], {LOAD: 1}),
        # of a finished attempt, a zombie's
        ([], [attempt(3, Verdict.COMMIT)], {LOAD: 3}),
        ([attempt(3, None, days=0.5)], [attempt(3, None, days=0.5), attempt(1, Verdict.ABORT)], {LOAD: 1}),
        # decided between the two looks: the later one counts
        ([attempt(1, Verdict.COMMIT)], [attempt(1, None, days=0.1)], {LOAD: 1}),
    ],
)
def test_which_loads_are_swept_and_how_far(
    unfinished: list[AttemptRow], holders: list[AttemptRow], chosen: dict[LoadIdentity, int]
) -> None:
    assert choose(unfinished, holders, NOW, DAY) == chosen


@pytest.mark.parametrize(
    ("known", "waits"),
    [
        ({}, False),
        ({"submitted_at": "t"}, True),
        ({"submitted_at": "t", "prepared_at": "t"}, True),
        ({"submitted_at": "t", "prepared_at": "t", "writers_left": True}, True),
        ({"submitted_at": "t", "prepared_at": "t", "writers_left": False}, False),
        ({"submitted_at": "t", "prepared_at": "t", "writers_left": True, "closed_at": "t"}, False),
    ],
)
def test_who_may_begin_one_more_is_waited_for(known: dict[str, Any], waits: bool) -> None:
    """A Spark that outlives its application has a first run of a task yet, whose second one was reported."""
    assert needs_quiet_period([replace(attempt(1, Verdict.ABORT), **known)]) is waits


def test_of_a_load_with_an_attempt_in_another_cluster_only_what_is_older_is_swept() -> None:
    rows = [attempt(1, Verdict.ABORT), attempt(2, Verdict.ABORT), attempt(3, Verdict.ABORT)]
    assert choose(rows, [], NOW, DAY, other_cluster=rows[1:2]) == {LOAD: 1}
    assert choose([*rows, attempt(1, Verdict.COMMIT, OTHER)], [], NOW, DAY, other_cluster=rows[:1]) == {OTHER: 1}


@pytest.fixture
def alone(settings: KafkaSettings, tmp_path: Path, world: World) -> Iterator[World]:
    """A ledger of its own, so that no other test's leftovers are found."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with connect(settings, url, "test") as session:
        yield World(session, settings, world.topic, world.load)


def sibling(world: World, key: str) -> World:
    return World(world.session, world.settings, world.topic, LoadIdentity("test", "orders", key))


def test_aborted_decided_and_abandoned_are_swept_and_the_living_is_not(alone: World) -> None:
    aborted, decided, abandoned, living = (sibling(alone, k) for k in ("aborted", "decided", "old", "living"))
    ref = reference(aborted.session, aborted.open_attempt())
    aborted.write(ref, ["never"])
    aborted.session.ledger.decide_abort(ref, decided_by=RUN, reason="check")
    decided.decide(decided.prepare(["a"]))
    abandoned.prepare(["never"])
    found = find(alone.session, abandoned_after=timedelta(0))
    assert found == Leftovers({w.load: 1 for w in (aborted, decided, abandoned)}, ())
    manifest = living.prepare(["b"])
    young = find(alone.session, abandoned_after=DAY)
    assert young.loads == {aborted.load: 1, decided.load: 1}
    # what is left alone is said, with its time: "nothing to clean up" is not "nothing is open"
    left = [(one.load, one.attempt, len(one.open)) for one in young.not_due]
    assert left == [(abandoned.load, 1, 1), (living.load, 1, 1)]
    in_a_day = datetime.now().astimezone() + DAY
    assert all(in_a_day - timedelta(minutes=5) < one.due_at <= in_a_day for one in young.not_due)
    swept = clean(alone.session, found.loads, by=RUN, quiet_s=0, deadline_s=60)
    assert {s.load: (len(s.aborted), s.error) for s in swept} == {
        aborted.load: (1, None), decided.load: (0, None), abandoned.load: (1, None),
    }  # fmt: skip
    assert alone.visible() == ["a"]
    assert alone.open_ids() == [manifest.transactions[0].transactional_id]
    living.decide(manifest)
    living.commit()
    assert find(alone.session, abandoned_after=timedelta(0)) == Leftovers({}, ())


@pytest.mark.parametrize(
    ("state", "days", "is_at_work"),
    [
        (RepairState.OPEN, 0.5, True),
        (RepairState.OPEN, 2, False),
        (RepairState.UNDECIDABLE, 0.5, False),
        (RepairState.ADOPTED, 0.5, False),
    ],
)
def test_a_repair_is_somebody_s_while_it_is_open_and_young(state: RepairState, days: float, is_at_work: bool) -> None:
    opened_at = (NOW - timedelta(days=days)).isoformat(timespec="microseconds")
    repair = RepairRow(LOAD, 1, 2, "lost", "copy", state, opened_at, "prepare")
    assert is_repaired([repair], NOW, DAY) is is_at_work


def test_what_is_never_abandoned_is_due_at_the_calendars_end() -> None:
    assert abandoned_at(attempt(1, None), timedelta.max).year == 9999
    assert not is_abandoned(attempt(1, None), NOW, timedelta.max)


def test_what_is_being_prepared_again_is_left_to_its_run_until_it_is_abandoned(alone: World) -> None:
    lost_and_gone(alone, 1, 0)
    again = opened(alone)
    made = written(alone, again, same(1))
    young = find(alone.session, abandoned_after=DAY)
    assert young.loads == {}
    ((waits, until),) = ((one.load, one.due_at) for one in young.not_due)
    assert waits == alone.load and until > datetime.now().astimezone() + timedelta(hours=23)
    assert find(alone.session, abandoned_after=timedelta(0)).loads == {alone.load: 1}
    clean(alone.session, young.loads, by=RUN, quiet_s=0, deadline_s=60)
    adopt_all(alone.session, again, made)
    alone.commit()
    assert find(alone.session, abandoned_after=DAY).loads == {}
    row = alone.session.ledger.load(alone.load)
    assert row is not None and row.state is LoadState.COMMITTED


def test_what_a_zombie_opens_behind_a_finished_load_is_found_by_listing(alone: World) -> None:
    manifest = alone.load_all(["a"])
    assert find(alone.session, abandoned_after=timedelta(0)).loads == {}
    alone.write(manifest.attempt, ["zombie"])
    found = find(alone.session, abandoned_after=DAY)
    assert found.loads == {alone.load: 1}
    clean(alone.session, found.loads, by=RUN, quiet_s=0, deadline_s=60)
    assert (alone.open_ids(), alone.visible()) == ([], ["a"])


def test_what_the_ledger_does_not_know_is_said_and_left_alone(alone: World) -> None:
    lost = LoadIdentity("test", "lost", alone.load.key)
    name = str(TransactionalId(lost, alone.session.ledger.ledger_id, 1, 0, 0))
    producer = foreign_transaction(alone, name)
    foreign_transaction(alone, str(TransactionalId(lost, "0123456789", 1, 0, 0)))
    assert find(alone.session, abandoned_after=timedelta(0)) == Leftovers({}, (name,))
    producer.abort_transaction(30)


def test_a_load_in_doubt_keeps_no_other_from_being_swept(alone: World, session: Session) -> None:
    doubtful, other = sibling(alone, "doubtful"), sibling(alone, "other")
    manifest = doubtful.prepare(["a", "b", "c", "d", "e"])  # into both partitions
    doubtful.decide(manifest)
    other.prepare(["never"])
    first, second = clean(
        mixed_up(alone.session, manifest.transactions[0]),
        {doubtful.load: 1, other.load: 1},
        by=RUN,
        quiet_s=0,
        deadline_s=60,
    )
    assert isinstance(first.error, InDoubtError)
    assert (second.error, len(second.aborted)) == (None, 1)
    row = alone.session.ledger.load(other.load)
    assert row is not None and row.state is LoadState.ABORTED


def test_what_begin_could_not_sweep_is_found_though_its_own_attempt_is_young(alone: World) -> None:
    """No broker answers once the attempt is open: begin says so in its log only, and the run may never go on."""
    first = reference(alone.session, alone.open_attempt())
    hidden = alone.write(first, ["never"]).transaction
    assert hidden is not None

    class Gone(Coordinator):
        """Since the ledger has the new attempt."""

        def list_open(self, prefix: str, *, longer_than_ms: int = -1) -> list[str]:
            if len(alone.session.ledger.attempts(alone.load)) > 1:
                raise BrokerUnavailableError("nobody answers", remedy="Wait")
            return super().list_open(prefix, longer_than_ms=longer_than_ms)

    ledger_id = alone.session.ledger.ledger_id
    gone = Gone(alone.session.partitions.wire, namespace="test", ledger_id=ledger_id)
    row = begin(replace(alone.session, coordinator=gone), alone.load, owner="dag/next run")
    assert (row.number, row.is_undecided) == (2, True)
    assert alone.open_ids() == [hidden.transactional_id]
    found = find(alone.session, abandoned_after=DAY)
    assert found.loads == {alone.load: 1}
    (swept,) = clean(alone.session, found.loads, by=RUN, quiet_s=0, deadline_s=60)
    assert (swept.aborted, swept.error) == ((hidden.transactional_id,), None)
    assert alone.open_ids() == []
    assert [a.is_undecided for a in alone.session.ledger.attempts(alone.load)] == [False, True]
