"""Micro-batches of a query whose ledger was put back, from a backup or by a failover of its database.

Rule: unknown-commit-stops.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import InDoubtError, NotFinishedError, OtherLedgerError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator, CoordinatorEpochs
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.protocol.guards.restored_ledger import check_batches_known
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages import batches
from airflow_kafka_eos.protocol.stages.begin import record_prepared
from tests.protocol.test_batches import FIRST, SECOND, Query, query

__all__ = ["query"]
pytestmark = pytest.mark.broker

_looks = count(1)


@pytest.fixture
def own(query: Query, tmp_path: Path) -> Iterator[Query]:
    """A query whose ledger is a file of its own, ``ledger.db``."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    with connect(query.world.settings, url, "test") as session:
        yield replace(query, world=replace(query.world, session=session))


def restored(own: Query, folder: Path) -> Query:
    """The query on the ledger as it is now, whatever comes into it from here on."""
    database = own.world.session.ledger.database
    with database.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")
    shutil.copy(folder / "ledger.db", folder / "backup.db")
    ledger = Ledger.open(f"sqlite:///{folder}/backup.db")
    return replace(own, world=replace(own.world, session=replace(own.world.session, ledger=ledger)))


def test_a_ledger_that_was_put_back_begins_no_batch_that_it_has_forgotten(own: Query, tmp_path: Path) -> None:
    own.load(own.batch(0), ["a"])
    before = restored(own, tmp_path)
    own.load(own.batch(1), ["b"])
    own.load(own.batch(2), ["c"])
    with pytest.raises(InDoubtError, match="broker shows committed transactions"):
        before.begin(before.batch(1), SECOND)
    with pytest.raises(InDoubtError, match="is not the next one"):
        before.begin(before.batch(3), SECOND)
    assert own.world.visible() == ["a", "b", "c"]


def test_behind_a_new_id_a_driver_that_goes_on_begins_nothing(own: Query, tmp_path: Path) -> None:
    own.load(own.batch(0), ["a"])
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db") as another:
        another.new_id(decided_by="test")
        another.set_stream("test", own.name, decided=0)
        with pytest.raises(OtherLedgerError, match="new-id"):
            own.ask(own.batch(1), first=False)
        assert another.load(own.batch(1).load) is None
    assert own.world.visible() == ["a"]


@pytest.mark.parametrize("lacks", ["the batch", "its decision"])
def test_behind_a_new_id_a_person_says_which_batches_are_there(own: Query, tmp_path: Path, lacks: str) -> None:
    own.load(own.batch(0), ["a"])
    if lacks == "the batch":
        before = restored(own, tmp_path)
        own.load(own.batch(1), ["b"])
    else:
        manifest = own.write(own.begin(own.batch(1)), ["b"])
        record_prepared(own.world.session, manifest, writers_left=True)
        before = restored(own, tmp_path)
        own.decide(own.batch(1), manifest)
    with pytest.raises(InDoubtError, match="broker shows committed transactions") as refused:
        before.begin(before.batch(1), SECOND)
    assert "streams set" in refused.value.remedy
    ledger = before.world.session.ledger
    ledger.set_stream("test", own.name, decided=1)  # too early: what was put back is not known to be all
    ledger.new_id(decided_by="test")
    session = before.world.session
    coordinator = Coordinator(session.partitions.wire, namespace="test", ledger_id=ledger.ledger_id)
    before = replace(before, world=replace(before.world, session=replace(session, coordinator=coordinator)))
    for number in (0, 1, 2):
        with pytest.raises(InDoubtError, match="does not know which batches"):
            before.begin(before.batch(number), SECOND)
    ledger.set_stream("test", own.name, decided=1)
    assert before.ask(before.batch(1), SECOND) is None
    before.load(before.batch(2), ["c"], run=SECOND)
    assert before.world.visible() == ["a", "b", "c"]


def test_a_ledger_that_was_put_back_while_the_query_runs_decides_nothing_twice(own: Query, tmp_path: Path) -> None:
    batch = own.batch(0)
    before = restored(own, tmp_path)
    forgotten = own.write(own.begin(batch), ["a"])
    with pytest.raises(InDoubtError, match="the broker shows transactions of others"):
        before.begin(batch, SECOND)
    own.decide(batch, forgotten)
    after = own.batch(1)
    before = restored(own, tmp_path)
    # begun by both before either writes, so that neither sees the other
    manifests = [one.write(row, ["b"]) for one, row in [(one, one.begin(after, SECOND)) for one in (own, before)]]
    own.decide(after, manifests[0], SECOND)
    with pytest.raises(InDoubtError, match="broker shows committed transactions"):
        before.decide(after, manifests[1], SECOND)
    assert before.world.session.ledger.state(after.load) is LoadState.PREPARED
    assert own.world.session.coordinator.end_many(manifests[1].transactions, Verdict.ABORT)
    assert own.world.visible() == ["a", "b"]


class Moving(Coordinator):
    """Coordinators that move with each look."""

    def epochs(self) -> CoordinatorEpochs:
        return frozenset({(next(_looks), 0, 0)})


def test_no_batch_is_decided_while_a_coordinator_may_hide_its_commit(own: Query) -> None:
    session = own.world.session
    moving = Moving(session.partitions.wire, namespace="test", ledger_id=session.ledger.ledger_id)
    with pytest.raises(NotFinishedError, match="moving or away"):
        check_batches_known(replace(session, coordinator=moving), own.batch(0), patience_s=0)
    check_batches_known(session, own.batch(0), patience_s=0)


def test_a_ledger_that_was_put_back_gives_up_no_batch_that_is_committed(own: Query, tmp_path: Path) -> None:
    batch = own.batch(0)
    manifest = own.write(own.begin(batch), ["a"])
    record_prepared(own.world.session, manifest, writers_left=True)
    before = restored(own, tmp_path)
    own.decide(batch, manifest)
    with pytest.raises(InDoubtError, match="broker shows committed transactions"):
        batches.abort_batch(before.world.session, manifest.attempt, FIRST)
    assert before.world.session.ledger.state(batch.load) is LoadState.PREPARED
