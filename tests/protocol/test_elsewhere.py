"""An attempt of one Kafka cluster is not touched through a connection that leads to another one; real brokers, two."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from airflow_kafka_eos.errors import OtherClusterError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger import tables
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import RepairState
from airflow_kafka_eos.load import LoadIdentity, LoadState, TransactionNaming, Verdict
from airflow_kafka_eos.protocol.cleanup.force_terminate import force_terminate
from airflow_kafka_eos.protocol.cleanup.namespace import clean, find
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.cleanup.sweep import sweep
from airflow_kafka_eos.protocol.guards.ownership import check_cluster
from airflow_kafka_eos.protocol.repair.copy import end_abandoned
from airflow_kafka_eos.protocol.repair.recover import give_up, recover
from airflow_kafka_eos.protocol.repair.reprepare import adopt_all, open_repreparation
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.begin import begin, submit
from airflow_kafka_eos.protocol.stages.commit import commit, commit_pass
from airflow_kafka_eos.protocol.stages.decide import Conditions, decide
from airflow_kafka_eos.protocol.stages.visible import lags
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.transaction import PreparedTransaction
from airflow_kafka_eos.two_phase_commit.recipe import complete_transaction, init_transactions
from tests.kafka.open_transactions import wait_until
from tests.protocol.lost import decided, lose, state
from tests.protocol.test_repreparing import lost_and_gone, opened, same, written
from tests.protocol.world import RUN, World

Act = Callable[[Session, World, PreparedTransaction], object]


@pytest.fixture(scope="module")
def other() -> Iterator[LocalKafka]:
    """The other cluster."""
    with LocalKafka(version="4.4.0") as running:
        yield running


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger of its own, for its whole file is compared."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    Ledger.open(url, upgrade=True).close()
    return url


@pytest.fixture
def here(settings: KafkaSettings, url: str, world: World) -> Iterator[World]:
    with connect(settings, url, "test") as session:
        yield World(session, settings, world.topic, world.load)


@pytest.fixture
def there(other: LocalKafka, url: str) -> Iterator[Session]:
    """What the same DAG gets, its connection changed."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": other.bootstrap_servers})
    with connect(settings, url, "test", timeout_s=20) as session:
        yield session


def content(url: str) -> list[str]:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
        return list(db.iterdump())


def refused(url: str, world: World, there: Session, act: Callable[[], object]) -> None:
    """It says which attempt is where, and changes nothing in the ledger."""
    before = content(url)
    with pytest.raises(OtherClusterError) as caught:
        act()
    error = caught.value
    here = world.session.cluster_id
    assert (error.load, error.attempt, error.written_to, error.leads_to) == (
        str(world.load), 1, here, there.cluster_id,
    )  # fmt: skip
    cleanup = f"`airflow-kafka-eos cleanup orders {world.load.key} --namespace test --kafka-conn-id …`"
    for said in (f"attempt 1 of load {world.load} was written to Kafka cluster {here}", str(there.cluster_id), cleanup):
        assert said in str(error)
    assert content(url) == before


UNDECIDED: dict[str, Act] = {
    "begin": lambda s, w, t: begin(s, w.load, owner=RUN),
    "submit": lambda s, w, t: submit(s, w.load, owner=RUN),
    "sweep": lambda s, w, t: sweep(s, w.load, up_to=1, by=RUN),
    "cleanup": lambda s, w, t: CleanPoll(w.load, up_to=1, by=RUN, quiet_s=0)(s),
    "force-terminate": lambda s, w, t: force_terminate(s, t.transactional_id, by=RUN, reason="x", deadline_s=5),
    "complete": lambda s, w, t: complete_transaction(s, t.transactional_id, t.state, by=RUN, deadline_s=5),
    "init-keep": lambda s, w, t: init_transactions(s, t.transactional_id, keep_prepared=True, by=RUN),
    "init-abort": lambda s, w, t: init_transactions(s, t.transactional_id, keep_prepared=False, by=RUN, deadline_s=5),
}
DECIDED: dict[str, Act] = {
    "begin": lambda s, w, t: begin(s, w.load, owner=RUN),
    "commit": lambda s, w, t: commit(s, w.load, deadline_s=1),
    "commit-pass": lambda s, w, t: commit_pass(s, w.load, 1),
    "recover": lambda s, w, t: recover(s, w.load, by=RUN, deadline_s=1),
    "give-up": lambda s, w, t: give_up(s, w.load, by=RUN, reason="x"),
    "sweep": lambda s, w, t: sweep(s, w.load, up_to=1, by=RUN),
    "complete": lambda s, w, t: complete_transaction(s, t.transactional_id, t.state, by=RUN, deadline_s=1),
}


def test_an_attempt_remembers_its_cluster_from_its_submission_on(here: World, there: Session) -> None:
    assert begin(here.session, here.load, owner=RUN).cluster_id is None
    row = submit(here.session, here.load, owner=RUN)
    assert row == here.session.ledger.attempt(here.load, 1)
    assert row.cluster_id == here.session.cluster_id != there.cluster_id
    assert all(len(str(s.cluster_id)) == 22 for s in (here.session, there))


def test_no_step_touches_what_is_prepared_in_another_cluster(here: World, there: Session, url: str) -> None:
    manifest = here.prepare(["a"])
    (transaction,) = manifest.transactions
    for act in UNDECIDED.values():
        refused(url, here, there, lambda act=act: act(there, here, transaction))  # type: ignore[misc]
    # not aborted by what the author's check says, either
    nothing = Conditions(min_records=10**6)
    refused(url, here, there, lambda: decide(there, manifest, nothing, owner=RUN, margin_s=5))
    assert here.open_ids() == [transaction.transactional_id]
    here.decide(manifest)
    here.commit()
    assert (here.visible(), here.open_ids()) == (["a"], [])


def test_no_step_touches_what_is_decided_in_another_cluster(here: World, there: Session, url: str) -> None:
    manifest = here.prepare(["a"])
    (transaction,) = manifest.transactions
    here.decide(manifest)
    for act in DECIDED.values():
        refused(url, here, there, lambda act=act: act(there, here, transaction))  # type: ignore[misc]
    assert here.open_ids() == [transaction.transactional_id]
    assert recover(here.session, here.load, by=RUN, deadline_s=30).state is LoadState.COMMITTED
    assert (here.visible(), here.open_ids()) == (["a"], [])


def test_what_was_submitted_behind_the_look_is_not_swept_either(
    here: World, there: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    (transaction,) = here.prepare(["a"]).transactions
    monkeypatch.setattr(there.ledger, "attempts", lambda load: [])
    with pytest.raises(OtherClusterError):
        sweep(there, here.load, up_to=1, by=RUN)
    assert here.open_ids() == [transaction.transactional_id]


def test_a_load_whose_attempts_are_closed_moves_on(here: World, there: Session, url: str) -> None:
    here.prepare(["a"])
    (swept,) = clean(here.session, {here.load: 1}, by=RUN, quiet_s=0, deadline_s=30)
    assert swept.error is None and here.open_ids() == []
    assert begin(there, here.load, owner=RUN).number == 2
    row = submit(there, here.load, owner=RUN)
    assert (row.number, row.cluster_id) == (2, there.cluster_id)
    # and back is the same
    with pytest.raises(OtherClusterError, match="attempt 2 of load"):
        begin(here.session, here.load, owner=RUN)
    (swept,) = clean(there, {here.load: 2}, by=RUN, quiet_s=0, deadline_s=30)
    assert swept.error is None and state(here) is LoadState.ABORTED


def test_a_committed_load_stays_so_wherever_the_connection_leads(here: World, there: Session) -> None:
    here.open_attempt()
    here.load_all(["a"])  # by the next one; what the first may have left nobody has looked for
    for row in (
        begin(there, here.load, owner=RUN),
        submit(there, here.load, owner=RUN),
        commit(there, here.load, deadline_s=5),
    ):
        assert (row.number, row.verdict, row.cluster_id) == (2, Verdict.COMMIT, here.session.cluster_id)
    with pytest.raises(OtherClusterError, match="attempt 1 of load"):
        sweep(there, here.load, up_to=2, by=RUN)
    with pytest.raises(OtherClusterError, match="reload it, or give it a load_key of its own"):
        lags(there, here.load)
    assert (state(here), lags(here.session, here.load)) == (LoadState.COMMITTED, [])


def test_a_slot_stays_in_its_cluster(here: World, there: Session) -> None:
    """In another one its ids may get the producer ids and epochs that are recorded of the first."""
    pooling = {"owner": RUN, "naming": TransactionNaming.POOLING, "deadline_ms": int(time.time() * 1000) + 60_000}
    slots = []
    for key, session in (("a", here.session), ("b", there), ("c", here.session), ("d", there)):
        load = LoadIdentity("test", here.load.name, f"{here.load.key}-{key}")
        begin(session, load, owner=RUN)
        slots.append(submit(session, load, **pooling).slot)  # type: ignore[arg-type]
        (swept,) = clean(session, {load: 1}, by=RUN, quiet_s=0, deadline_s=30)
        assert swept.error is None
        session.ledger.database.write(lambda c: c.execute(update(tables.slots).values(quarantined_until=None)))
    assert slots == [0, 1, 0, 1]


def test_a_cluster_that_is_gone_is_forgotten_with_the_repairs_that_it_had(here: World, there: Session) -> None:
    manifest = decided(here, 2)
    lose(here, manifest.transactions[0])
    wait_until(lambda: not commit_pass(here.session, here.load, 1).open, "the commit of the other")
    here.session.ledger.open_repair(here.load, 1, manifest.transactions[0].transactional_id, opened_by="killed")
    here.session.ledger.abandon_repairs(here.load, reason="dead")
    here.session.ledger.database.write(
        lambda c: c.execute(update(tables.attempts).values(closed_at="2026-01-01T00:00:00+00:00"))
    )
    with pytest.raises(OtherClusterError):
        end_abandoned(there, here.load)
    assert here.session.ledger.forget_cluster(str(here.session.cluster_id)) == 1
    end_abandoned(there, here.load)
    assert here.session.ledger.forget_cluster(str(here.session.cluster_id)) == 0


def test_a_slot_of_a_cluster_that_is_gone_is_used_in_no_other(here: World, there: Session) -> None:
    """A new cluster counts its producer ids from 0, and may come to an identity that is decided here."""
    pooling = {"owner": RUN, "naming": TransactionNaming.POOLING, "deadline_ms": int(time.time() * 1000) + 60_000}
    begin(here.session, here.load, owner=RUN)
    assert submit(here.session, here.load, **pooling).slot == 0  # type: ignore[arg-type]
    ledger = here.session.ledger
    assert ledger.forget_cluster(str(here.session.cluster_id)) == 1
    (slot,) = ledger.slots("test", here.load.name)
    assert slot.is_retired and not slot.is_leased
    (swept,) = clean(there, {here.load: 1}, by=RUN, quiet_s=0, deadline_s=30)
    assert swept.error is None and ledger.slots("test", here.load.name) == [slot]
    begin(there, here.load, owner=RUN)
    assert submit(there, here.load, **pooling).slot == 1  # type: ignore[arg-type]


def test_maintenance_passes_over_what_is_in_another_cluster_and_says_so(
    here: World, there: Session, url: str
) -> None:
    (transaction,) = here.prepare(["a"]).transactions
    left = LoadIdentity("test", "orders", "left-there")
    begin(there, left, owner=RUN)
    submit(there, left, owner=RUN)
    now = timedelta(0)
    found = find(there, abandoned_after=now)
    assert found.loads == {left: 1}
    assert [(row.load, row.cluster_id) for row in found.other_cluster] == [(here.load, here.session.cluster_id)]
    # whoever looks after the other cluster has as long again for it
    assert find(there, abandoned_after=timedelta(days=1)).other_cluster == ()
    one, two = clean(there, {here.load: 1, left: 1}, by=RUN, quiet_s=0, deadline_s=30)
    assert isinstance(one.error, OtherClusterError) and two.error is None
    assert here.open_ids() == [transaction.transactional_id]
    found = find(here.session, abandoned_after=now)
    assert (found.loads, found.other_cluster) == ({here.load: 1}, ())
    (swept,) = clean(here.session, found.loads, by=RUN, quiet_s=0, deadline_s=30)
    assert (swept.error, here.open_ids()) == (None, [])


def test_a_repair_that_was_left_behind_is_not_closed_from_another_cluster(
    here: World, there: Session, url: str
) -> None:
    manifest = decided(here, 2)
    lose(here, manifest.transactions[0])
    wait_until(lambda: not commit_pass(here.session, here.load, 1).open, "the commit of the other")
    name = manifest.transactions[0].transactional_id
    repair = here.session.ledger.open_repair(here.load, 1, name, opened_by="killed")
    assert repair is not None
    here.session.ledger.abandon_repairs(here.load, reason="dead")
    refused(url, here, there, lambda: end_abandoned(there, here.load))
    here.commit()  # by another repair
    (first, *_) = here.session.ledger.repairs(here.load)
    assert (first.state, state(here)) == (RepairState.UNDECIDABLE, LoadState.COMMITTED)
    assert first.closed_at is not None


def test_nothing_is_prepared_again_for_another_cluster(here: World, there: Session, url: str) -> None:
    lost_and_gone(here, 1, 0)
    row = here.session.ledger.attempts(here.load)[0]
    refused(url, here, there, lambda: open_repreparation(there, row, by=RUN, hold_time_ms=60_000))
    again = opened(here)
    manifest = written(here, again, same(1))
    refused(url, here, there, lambda: adopt_all(there, again, manifest))
    adopt_all(here.session, again, manifest)
    here.commit()
    assert state(here) is LoadState.COMMITTED


@pytest.mark.parametrize("unknown", ["of the attempt", "of the brokers"])
def test_a_cluster_that_is_not_known_passes_for_this_one(
    here: World, there: Session, monkeypatch: pytest.MonkeyPatch, unknown: str
) -> None:
    row = here.open_attempt()
    check_cluster(here.session, [row])
    with pytest.raises(OtherClusterError):
        check_cluster(there, [row])
    if unknown == "of the attempt":
        row = replace(row, cluster_id=None)
    else:
        monkeypatch.setattr(Wire, "cluster_id", lambda self: None)
    check_cluster(there, [row])
