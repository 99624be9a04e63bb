"""Repairs in the specification: what was lost behind the decision is copied, and one copy enters the decision."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_kafka_eos.kafka.producer.copier import Copier
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.protocol.repair.copy import repair
from airflow_kafka_eos.protocol.session import Session
from airflow_kafka_eos.protocol.stages.commit import commit_pass
from airflow_kafka_eos.transaction import Outcome
from tests.crashes.victim import Place
from tests.kafka.open_transactions import wait_until
from tests.model.checking import check, moved, replay
from tests.model.recorder import Event, Recorder
from tests.model.replay import Refused

pytestmark = pytest.mark.broker

#: one transaction is lost, and whatever is sent may be delivered twice
LOST: dict[str, Any] = {"timeouts": 1, "dups": 2}


def lose(world: Place, recorder: Recorder) -> None:
    """One of two decided transactions is fenced by somebody who did not ask, with its epoch bumped."""
    manifest = world.prepare_all()
    world.decide(manifest)
    name = manifest.transactions[1].transactional_id
    with recorder.elsewhere():
        world.session.coordinator.init_producer_id(name, 60_000)
        wait_until(lambda: name not in world.open_ids(), "the end of the transaction")


@pytest.fixture
def repaired(new_world: Callable[..., Place], recorder: Recorder) -> tuple[Place, list[Event]]:
    world = new_world()
    lose(world, recorder)
    world.commit()
    world.clean()
    return world, list(recorder.events)


both = pytest.mark.parametrize("broker", ["4.4", "3.9"], indirect=True)


def tv_of(request: pytest.FixtureRequest) -> int:
    return 1 if request.node.callspec.params["broker"] == "3.9" else 2


@both
def test_what_was_lost_is_copied_adopted_and_committed(
    repaired: tuple[Place, list[Event]], request: pytest.FixtureRequest
) -> None:
    world, events = repaired
    kinds = [e.kind for e in events]
    assert kinds.index("repair_opened") < kinds.index("copied") < kinds.index("adopted")
    check(replay(events, repairers=1, tv=tv_of(request), **LOST), world)


def loss_found(events: list[Event]) -> int:
    return next(
        n
        for n, e in enumerate(events)
        if e.kind == "found" and Outcome.LOST in e.what["outcomes"].values()
    )


def test_a_repair_in_a_wrong_order_is_refused(repaired: tuple[Place, list[Event]]) -> None:
    _, events = repaired

    def refused(wrong: list[Event], kind: str) -> None:
        with pytest.raises(Refused, match=kind):
            replay(wrong, repairers=1, **LOST)

    # before anybody has seen the abort marker (rule: log-is-the-evidence)
    at = loss_found(events)
    refused([*events[:at], *events[at + 1 :]], "repair_opened")
    # before it is copied whole
    refused(moved(events, "adopted", "copied"), "adopted")
    # Kafka before the ledger (rule: decide-before-kafka): the copy is committed and nobody has let it in
    adopted = next(e for e in events if e.kind == "adopted")
    copy = adopted.what["transaction"]
    sent = next(n for n, e in enumerate(events) if e.kind == "sent" and e.what["transaction"] == copy)
    to = events.index(adopted)
    refused([*events[:to], events[sent], *events[to:sent], *events[sent + 1 :]], "sent")
    # an adopted repair is decided: nobody aborts it
    abort = Event("sent", {"transaction": copy, "verdict": Verdict.ABORT})
    refused([*events[: to + 1], abort], "sent")
    # without the loss there is nothing to repair
    with pytest.raises(Refused):
        replay(events, repairers=1, **LOST | {"timeouts": 0})


@both
def test_the_loser_of_two_repairers_leaves_nothing_open(
    new_world: Callable[..., Place],
    open_session: Callable[[], Session],
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Both have copied all of it before either asks the ledger."""
    world = new_world()
    lose(world, recorder)
    wait_until(lambda: not commit_pass(world.session, world.load, 1).open, "the commit of the other one")
    rows = world.session.ledger.transactions(world.load, 1)
    lost = next(t for t in rows if t.outcome is Outcome.LOST)
    ready = threading.Barrier(2)
    copy = Copier.copy

    def copy_and_wait(*arguments: object) -> object:
        done = copy(*arguments)  # type: ignore[arg-type]
        ready.wait(30)
        return done

    monkeypatch.setattr(Copier, "copy", copy_and_wait)
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda s=s: won.append(repair(s, world.load, 1, lost, by="r")))
        for s in (open_session(), open_session())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(won) == [False, True]
    world.commit()
    world.clean()
    events = list(recorder.events)
    two = LOST | {"repairers": 2, "undos": 2, "cleaners": 3, "tv": tv_of(request)}
    check(replay(events, **two), world)
    # the loser of the race does not enter the decision too (rule: repair-replaces-lost-row)
    late = next(n for n, e in enumerate(events) if e.kind == "adopted" and not e.what["done"])
    in_too = Event("adopted", events[late].what | {"done": True})
    with pytest.raises(Refused, match="adopted"):
        replay([*events[:late], in_too, *events[late + 1 :]], **two)
    # nor does it leave its own open
    loser = events[late].what["transaction"]
    left_open = [e for e in events if e.kind not in ("sent", "answered") or e.what["transaction"] != loser]
    assert len(left_open) < len(events)
    with pytest.raises(Refused, match="repairs_closed"):
        replay(left_open, **two)
