"""A process is killed, and others come: what all of them did, one behind the other, is a run of the specification."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos.load import Verdict
from tests.crashes.recovery import Recovery, recover
from tests.crashes.victim import Order, Place
from tests.kafka.open_transactions import wait_until
from tests.model.checking import check, replay
from tests.model.recorder import Event, Recorder, recorded_in
from tests.model.replay import Refused

pytestmark = pytest.mark.broker

BETWEEN_TWO = "commit: between two EndTxn"


def killed(world: Place, step: str, ledger_url: str, folder: Path) -> list[Event]:
    """What a process did until it was killed at a step of the kill table."""
    journal = folder / "journal"
    order = Order(
        step=step,
        servers=world.settings.bootstrap_servers,
        ledger_url=ledger_url,
        topic=world.topic,
        key=world.load.key,
        scope=world.scope.value,
        two_phase=False,
        folder=str(folder),
    )
    died = subprocess.run(
        [sys.executable, "-m", "tests.model.recorded_victim", str(journal), json.dumps(order.as_dict())],
        cwd=Path(__file__).parents[2], timeout=90, capture_output=True, text=True,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    return recorded_in(journal)


@pytest.fixture
def kill(model_ledger_url: str, tmp_path: Path, recorder: Recorder) -> Callable[[Place, str], list[Event]]:
    """``kill(world, step)``: the victim's events; what the test records goes on from there."""

    def run(world: Place, step: str) -> list[Event]:
        events = killed(world, step, model_ledger_url, tmp_path)
        recorder.go_on_from(events)
        return events

    return run


@pytest.mark.parametrize(
    ("broker", "step", "first", "attempt"),
    [
        ("4.4", BETWEEN_TWO, Recovery.RETRY, 1),
        ("3.9", BETWEEN_TWO, Recovery.CLEANUP, 1),
        ("4.4", "decide: decide_commit written, not committed", Recovery.RETRY, 1),
        ("4.4", "prepare: one of two writers is prepared", Recovery.RETRY, 2),
        ("3.9", "sweep: between two aborts", Recovery.RETRY, 2),
    ],
    indirect=["broker"],
)
def test_a_kill_and_what_came_behind_it(
    new_world: Callable[..., Place],
    kill: Callable[[Place, str], list[Event]],
    recorder: Recorder,
    request: pytest.FixtureRequest,
    step: str,
    first: Recovery,
    attempt: int,
) -> None:
    world = new_world()
    left = kill(world, step)
    assert left[-1].kind not in ("answered", "committed", "swept")
    if step == BETWEEN_TWO:
        # one was sent, and is through or on its way, its markers too; the other was never sent
        wait_until(lambda: len(world.open_ids()) == 1, "the end of the one that was sent")
    recover(world, first)
    tv = 1 if request.node.callspec.params["broker"] == "3.9" else 2
    # what the victim has sent may come behind what is sent again
    dups = 2 if step == BETWEEN_TWO else 0
    check(replay(recorder.events, attempts=attempt, tv=tv, dups=dups), world, attempt)


def test_a_killed_commit_that_is_taken_back_is_refused(
    new_world: Callable[..., Place], kill: Callable[[Place, str], list[Event]], recorder: Recorder
) -> None:
    """Over two processes: what one has decided, no other may abort, open anew or call done unseen."""
    world = new_world()
    left = kill(world, BETWEEN_TWO)
    recover(world, Recovery.RETRY)
    whole = recorder.events
    replay(whole, dups=2)
    last = left[-1]
    assert last.kind == "sent"
    for wrong in (
        Event("sent", last.what | {"verdict": Verdict.ABORT}),
        Event("opened", {"attempt": 2}),
        Event("committed", {"attempt": 1}),
    ):
        with pytest.raises(Refused, match=wrong.kind):
            replay([*left, wrong], attempts=2, dups=2)
    # a victim that had not decided: what comes behind it commits nothing
    undecided = [e for e in left if e.kind not in ("decided_commit", "sent")]
    with pytest.raises(Refused, match="sent"):
        replay([*undecided, *whole[len(left) :]], dups=2)
