"""Traces of real runs are runs of the executable specification too; one in a wrong order is not (Done when 8).

The world of each replay says what the environment did in that run: how many attempts there were, whether the broker
timed a transaction out, whether an EndTxn was sent twice.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable

import pytest

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.load import TransactionScope, Verdict
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.begin import begin
from airflow_kafka_eos.protocol.stages.commit import commit
from tests.crashes.victim import Place
from tests.model.checking import check, load_all, moved, replay
from tests.model.recorder import Event, Recorder, successor
from tests.model.replay import Refused
from tests.protocol.world import RUN

pytestmark = pytest.mark.broker

SCOPES = list(TransactionScope)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_clean_load(new_world: Callable[..., Place], recorder: Recorder, scope: TransactionScope) -> None:
    world = new_world(scope)
    load_all(world)
    check(replay(recorder.events, scope), world)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_retry_sweeps_what_the_first_try_left(
    new_world: Callable[..., Place], recorder: Recorder, scope: TransactionScope
) -> None:
    world = new_world(scope)
    world.prepare_all()
    load_all(world)
    assert len(recorder.of_kind("opened")) == 2
    check(replay(recorder.events, scope, attempts=2), world, attempt=2)


def test_a_cleanup_of_what_was_never_decided(new_world: Callable[..., Place], recorder: Recorder) -> None:
    world = new_world()
    world.prepare_all()
    world.clean()
    found = replay(recorder.events)
    assert (found.settled(), found.visible(), world.visible()) == (True, {frozenset()}, [])


@pytest.mark.parametrize("scope", SCOPES)
def test_a_decider_that_is_gone_after_its_decision(
    new_world: Callable[..., Place],
    open_session: Callable[[], Session],
    recorder: Recorder,
    scope: TransactionScope,
) -> None:
    """Nobody sends an EndTxn; the next process that comes along rolls forward."""
    world = new_world(scope)
    world.decide(world.prepare_all())
    other = dataclasses.replace(world, session=open_session())
    assert begin(other.session, other.load, owner=RUN).verdict is Verdict.COMMIT
    other.clean()
    check(replay(recorder.events, scope), world)


def test_two_committers(
    new_world: Callable[..., Place], open_session: Callable[[], Session], recorder: Recorder
) -> None:
    world = new_world()
    world.decide(world.prepare_all())
    barrier = threading.Barrier(2)

    def run(session: Session) -> None:
        barrier.wait(30)
        commit(session, world.load, deadline_s=30)

    threads = [threading.Thread(target=run, args=(s,)) for s in (open_session(), open_session())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(recorder.of_kind("committed")) == 2
    check(replay(recorder.events, dups=4), world)


def test_a_timeout_before_the_decision(new_world: Callable[..., Place], recorder: Recorder) -> None:
    world = new_world(timeout_ms=1000)
    manifest = world.prepare_all()
    end = time.monotonic() + 30
    while world.open_ids():
        assert time.monotonic() < end
        time.sleep(0.1)
    with pytest.raises(UndecidableError):
        world.decide(manifest)
    load_all(dataclasses.replace(world, timeout_ms=600_000))
    check(replay(recorder.events, attempts=2, timeouts=2), world, attempt=2)


# --- the replay can tell: the same traces, with one thing wrong


@pytest.fixture
def clean_trace(new_world: Callable[..., Place], recorder: Recorder) -> list[Event]:
    load_all(new_world())
    return list(recorder.events)


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        ("sent", "decided_commit"),  # Kafka before the ledger (rule: decide-before-kafka)
        ("decided_commit", "reported"),  # not prepared (rule: decide-what-is-confirmed)
        ("committed", "found"),  # rule: committed-is-verified
        ("found", "sent"),  # no marker can be there (rule: log-is-the-evidence)
        ("wrote", "initialised"),  # rule: one-init-per-transaction
    ],
)
def test_a_wrong_order_is_refused(clean_trace: list[Event], kind: str, before: str) -> None:
    with pytest.raises(Refused, match=kind):
        replay(moved(clean_trace, kind, before))


def test_another_identity_is_refused(clean_trace: list[Event]) -> None:
    at = [e.kind for e in clean_trace].index("sent")
    event = clean_trace[at]
    other = Event("sent", event.what | {"transaction": successor(event.what["transaction"])})
    with pytest.raises(Refused, match="sent"):
        replay([*clean_trace[:at], other, *clean_trace[at + 1 :]])


def test_a_decision_without_the_brokers_word_is_refused(clean_trace: list[Event]) -> None:
    with pytest.raises(Refused, match="decided_commit"):
        replay([e for e in clean_trace if e.kind != "described"])


@pytest.mark.parametrize("left_out", ["made_undecidable", "described", "asked"])
def test_a_cleanup_that_leaves_out_a_step_is_refused(
    new_world: Callable[..., Place], recorder: Recorder, left_out: str
) -> None:
    world = new_world()
    world.prepare_all()
    world.clean()
    replay(recorder.events)
    with pytest.raises(Refused, match="sent"):
        replay([e for e in recorder.events if e.kind != left_out])


def test_a_new_attempt_of_a_decided_load_is_refused(clean_trace: list[Event]) -> None:
    with pytest.raises(Refused, match="opened"):
        replay([*clean_trace, Event("opened", {"attempt": 2})], attempts=2)
