"""Several at once, on a real broker: whatever the order, one outcome, and the load arrives once.

Rules: one-decision-per-load, one-key-loads-once.

Each racer has a session of its own, as a process would. ``SEEDS=<n>`` runs more rounds; a failure names its seed, and
``SEED=<number>`` runs that one alone.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.errors import KafkaEosError, UndecidableError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, TransactionScope, Verdict
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.reader import Reader
from tests.crashes.recovery import Recovery, check_all_is_well, recover
from tests.crashes.victim import NAMESPACE, PARTS, Place
from tests.protocol.world import RUN

pytestmark = pytest.mark.broker

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(int(os.environ.get("SEEDS", "6"))))
RACERS = 3
Call = Callable[[], Any]


def race(seed: int, *calls: Call) -> list[Any]:
    """Run all at about the same moment; their answers, or our own errors as values."""
    pauses = random.Random(seed)
    barrier = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def run(n: int, pause: float) -> None:
        barrier.wait(60)
        time.sleep(pause)
        try:
            answers[n] = calls[n]()
        except Exception as e:
            answers[n] = e

    # a tenth of the rounds start together, most are spread over what a decision takes
    spread = pauses.choice([0.0, 0.005, 0.02, 0.05])
    threads = [threading.Thread(target=run, args=(n, pauses.random() * spread)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for answer in answers:
        if isinstance(answer, Exception) and not isinstance(answer, KafkaEosError):
            raise answer
    return answers


@pytest.fixture(params=["sqlite", "postgresql"])
def rounds(
    request: pytest.FixtureRequest, kafka: LocalKafka, ledger_urls: dict[str, str], tmp_path: Path
) -> Iterator[Callable[[Callable[[int, list[Place]], None]], None]]:
    """``rounds(play)``: play each seed with a load of its own, then recover and count."""
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(connect(settings, ledger_urls[request.param], NAMESPACE))
            for _ in range(RACERS)
        ]
        reader = Reader(kafka.bootstrap_servers)

        def run(play: Callable[[int, list[Place]], None]) -> None:
            for seed in SEEDS:
                topic = f"races-{request.node.name.replace('[', '-').rstrip(']')}-{seed}"
                kafka.create_topic(topic, partitions=len(PARTS))
                world = Place(
                    sessions[0],
                    settings,
                    topic,
                    LoadIdentity(NAMESPACE, "races", topic),
                    scope=list(TransactionScope)[seed % 2],
                    folder=tmp_path,
                )
                try:
                    play(seed, [dataclasses.replace(world, session=s) for s in sessions])
                    recover(world, Recovery.RETRY)
                    check_all_is_well(world, reader)
                except BaseException as e:
                    e.add_note(f"seed {seed}: run it alone with SEED={seed}")
                    raise

        yield run


def sweeps(world: Place, up_to: int) -> Call:
    """A cleanup, to its end."""
    poll = CleanPoll(world.load, up_to=up_to, by="dag/cleaner", quiet_s=0)
    return lambda: world.until_done(lambda: poll(world.session))


def verdicts(world: Place) -> list[Verdict | None]:
    return [a.verdict for a in world.session.ledger.attempts(world.load)]


def test_two_attempts(rounds: Callable[..., None]) -> None:
    """Two applications of one load, each to the end: at most one of them is decided, and the other writes in vain."""

    def play(seed: int, places: list[Place]) -> None:
        def whole(world: Place) -> Call:
            def run() -> AttemptRow:
                world.decide(world.prepare_all())
                return world.commit()

            return run

        answers = race(
            seed, *(whole(dataclasses.replace(p, _task_attempts=[100 * n])) for n, p in enumerate(places[:2]))
        )
        won = [a for a in answers if isinstance(a, AttemptRow)]
        assert len({a.number for a in won}) <= 1
        assert verdicts(places[0]).count(Verdict.COMMIT) == bool(won)

    rounds(play)


def test_two_deciders(rounds: Callable[..., None]) -> None:
    def play(seed: int, places: list[Place]) -> None:
        manifest = places[0].prepare_all()
        first, second = race(seed, *(lambda p=p: p.decide(manifest) for p in places[:2]))
        assert first == second
        assert verdicts(places[0]) == [Verdict.COMMIT]

    rounds(play)


def test_a_decider_against_a_cleaner(rounds: Callable[..., None]) -> None:
    """Committed or aborted, never a part of each."""

    def play(seed: int, places: list[Place]) -> None:
        manifest = places[0].prepare_all()
        decided, swept = race(seed, lambda: places[0].decide(manifest), sweeps(places[1], 1))
        assert swept is None
        won = isinstance(decided, AttemptRow)
        assert won or isinstance(decided, UndecidableError)
        assert verdicts(places[0]) == [Verdict.COMMIT if won else Verdict.ABORT]

    rounds(play)


def test_two_committers_and_a_cleaner(rounds: Callable[..., None]) -> None:
    def play(seed: int, places: list[Place]) -> None:
        places[0].decide(places[0].prepare_all())
        first, second, swept = race(seed, places[0].commit, places[1].commit, sweeps(places[2], 1))
        assert swept is None
        assert first.verdict is second.verdict is Verdict.COMMIT
        assert first.closed_at is not None and second.closed_at is not None

    rounds(play)


def test_a_decider_against_a_new_attempt(rounds: Callable[..., None]) -> None:
    """A task is cleared while its run decides: the load is decided, or it is written anew, not both.

    Rule: one-decision-per-load.
    """

    def play(seed: int, places: list[Place]) -> None:
        manifest = places[0].prepare_all()
        decided, opened = race(seed, lambda: places[0].decide(manifest), lambda: places[1].open_attempt(RUN))
        if isinstance(decided, AttemptRow):
            assert opened == decided
            assert verdicts(places[0]) == [Verdict.COMMIT]
        else:
            assert opened.number == 2
            assert verdicts(places[0]) == [Verdict.ABORT, None]

    rounds(play)
