"""Two at once, on real databases: whatever the order, one outcome (rule: one-decision-per-load)."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.ledger import AttemptRow, Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState, Verdict
from tests.ledger.ledger_support import LOAD, manifest, prepare, ref, sql

ROUNDS = 8
WAIT = 60.0


def race(seed: int, *calls: Callable[[], Any]) -> list[Any]:
    """Run all calls at about the same moment; their results, or UndecidableError as a value."""
    pauses = random.Random(seed)
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(n: int, pause: float) -> None:
        barrier.wait(WAIT)
        time.sleep(pause)
        try:
            results[n] = calls[n]()
        except Exception as e:
            results[n] = e

    threads = [threading.Thread(target=run, args=(n, pauses.random() * 0.004)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, UndecidableError):
            raise result
    return results


def loads() -> list[LoadIdentity]:
    return [LoadIdentity("team", "races", str(seed)) for seed in range(ROUNDS)]


def commits(ledger: Ledger, load: LoadIdentity) -> int:
    return sum(a.verdict is Verdict.COMMIT for a in ledger.attempts(load))


def test_two_deciders(ledger: Ledger, url: str) -> None:
    for seed, load in enumerate(loads()):
        prepare(ledger, load)
        hooks: list[int] = []

        def decide(n: int, load: LoadIdentity = load, hooks: list[int] = hooks) -> AttemptRow:
            return ledger.decide_commit(
                manifest(ledger, 1, load), decided_by=f"decider {n}", dual_write=lambda _: hooks.append(n)
            )

        first, second, third = race(seed, lambda: decide(1), lambda: decide(2), lambda: decide(3))
        assert first == second == third == ledger.attempt(load, 1)
        assert first.decided_by == f"decider {hooks[-1]}"
        assert (len(hooks), len(ledger.transactions(load, 1))) == (1, 2)


def test_decider_against_cleanup(ledger: Ledger, url: str) -> None:
    mapped = 0
    for seed, load in enumerate(loads()):
        prepare(ledger, load)
        decided, rows = race(
            seed,
            lambda load=load: ledger.decide_commit(manifest(ledger, 1, load), decided_by="d"),  # type: ignore[misc]
            lambda load=load: ledger.make_undecidable(load, up_to=1, decided_by="c", reason="killed"),  # type: ignore[misc]
        )
        assert rows == ledger.attempts(load)
        won = rows[0].verdict is Verdict.COMMIT
        assert won is not isinstance(decided, UndecidableError)
        mapped += 2 if won else 0
        assert sql(url, "SELECT count(*) FROM kafka_transaction_state") == [(mapped,)]
        assert [ledger.is_decided_commit(t.transaction) for t in ledger.transactions(load, 1)] == [won, won]
        row = ledger.load(load)
        assert row is not None
        assert row.state is (LoadState.COMMITTING if won else LoadState.ABORTING)


def test_decider_against_abort(ledger: Ledger) -> None:
    for seed, load in enumerate(loads()):
        prepare(ledger, load)
        decided, aborted = race(
            seed,
            lambda load=load: ledger.decide_commit(manifest(ledger, 1, load), decided_by="d"),  # type: ignore[misc]
            lambda load=load: ledger.decide_abort(ref(ledger, 1, load), decided_by="c", reason="killed"),  # type: ignore[misc]
        )
        assert aborted is isinstance(decided, UndecidableError)
        assert commits(ledger, load) == (0 if aborted else 1)


def test_two_submits_never_share_an_attempt(ledger: Ledger) -> None:
    for seed, load in enumerate(loads()):
        ledger.begin(load, owner="b")
        rows = race(seed, *(lambda load=load, n=n: ledger.submit(load, owner=f"try {n}") for n in range(3)))
        assert sorted(r.number for r in rows) == [1, 2, 3]
        assert [a.is_undecided for a in ledger.attempts(load)] == [False, False, True]


def test_two_begins_open_one_attempt(ledger: Ledger) -> None:
    for seed, load in enumerate(loads()):
        rows = race(seed, *(lambda load=load: ledger.begin(load, owner="b") for _ in range(3)))
        assert rows[0] == rows[1] == rows[2]
        assert ledger.attempts(load) == [rows[0]]


def test_two_manifests_of_one_attempt(ledger: Ledger) -> None:
    for seed, load in enumerate(loads()):
        ledger.begin(load, owner="b")
        ledger.submit(load, owner="s")
        documents = [manifest(ledger, 1, load, full=n) for n in (1, 3)]
        answers = race(seed, *(lambda d=d: ledger.mark_prepared(d) for d in documents))
        refused = [isinstance(a, UndecidableError) for a in answers]
        assert sorted(refused) == [False, True]
        won = documents[refused.index(False)]
        assert [t.transaction for t in ledger.transactions(load, 1)] == list(won.transactions)
        assert ledger.decide_commit(won, decided_by="d").verdict is Verdict.COMMIT


def test_opening_against_decider(ledger: Ledger) -> None:
    for seed, load in enumerate(loads()):
        prepare(ledger, load)
        decided, submitted, begun = race(
            seed,
            lambda load=load: ledger.decide_commit(manifest(ledger, 1, load), decided_by="d"),  # type: ignore[misc]
            lambda load=load: ledger.submit(load, owner="retry"),  # type: ignore[misc]
            lambda load=load: ledger.begin(load, owner="cleared"),  # type: ignore[misc]
        )
        if isinstance(decided, UndecidableError):
            assert (commits(ledger, load), submitted.number) == (0, 2)
            assert begun.number in (1, 2, 3)
        else:
            assert submitted == decided
            assert begun.number == 1
            assert len(ledger.attempts(load)) == 1
        assert sum(a.is_undecided for a in ledger.attempts(load)) <= 1


@pytest.mark.parametrize("rival", ["begin", "submit", "make_undecidable", "decide_abort", "decide_commit"])
def test_whoever_comes_during_a_decision_waits_for_it(ledger: Ledger, rival: str) -> None:
    """The decision is written and not yet committed when the rival comes: the lock of the load's row alone helps."""
    prepare(ledger)
    calls: dict[str, Callable[[], Any]] = {
        "begin": lambda: ledger.begin(LOAD, owner="rival"),
        "submit": lambda: ledger.submit(LOAD, owner="rival"),
        "make_undecidable": lambda: ledger.make_undecidable(LOAD, up_to=1, decided_by="rival", reason="x")[0],
        "decide_abort": lambda: ledger.decide_abort(ref(ledger, 1), decided_by="rival", reason="x"),
        "decide_commit": lambda: ledger.decide_commit(manifest(ledger, 1), decided_by="rival"),
    }
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(calls[rival]())
        except Exception as e:
            answers.append(e)

    thread = threading.Thread(target=run)

    def dual_write(_: Connection) -> None:
        thread.start()
        thread.join(0.3)  # gives the rival the time to do harm; correct code needs none of it

    decided = ledger.decide_commit(manifest(ledger, 1), decided_by="d", dual_write=dual_write)
    thread.join(WAIT)
    assert answers == [False if rival == "decide_abort" else decided]
    assert ledger.attempts(LOAD) == [decided]


CHILD = """
import json, sys
sys.path.insert(0, sys.argv[2])
from tests.ledger.ledger_support import LOAD, manifest
from airflow_kafka_eos.errors import UndecidableError
from airflow_kafka_eos.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
answers = []
with Ledger.open(sys.argv[1]) as ledger:
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(15):
        load = LoadIdentity("team", "processes", str(n))
        try:
            if sys.argv[3] == "commit":
                row = ledger.decide_commit(manifest(ledger, 1, load), decided_by="child")
            else:
                row = ledger.make_undecidable(load, up_to=1, decided_by="child", reason="x")[0]
            answers.append(row.verdict.value)
        except UndecidableError:
            answers.append("abort")
print(json.dumps(answers))
"""


def test_processes_agree_on_every_verdict(ledger: Ledger, url: str, request: pytest.FixtureRequest) -> None:
    for n in range(15):
        prepare(ledger, LoadIdentity("team", "processes", str(n)))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, url, str(request.config.rootpath), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for what in ("commit", "abort", "commit")
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(child.communicate(timeout=WAIT)[0]) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert answers[0] == answers[1] == answers[2]
    assert len(sql(url, "SELECT attempt_id FROM kafka_eos_decisions")) == 15
