"""A cursor under kills at random: every record of the source is loaded once, whatever dies, and whoever comes next.

Rules: cursor-moves-with-the-decision, range-is-pinned, one-load-per-cursor.

``RUNS=<n>`` plays more runs, ``SEED=<n>`` others; a failure names its seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.cursor_victim import NAMESPACE, Ended, Order, Victims
from tests.crashes.cursor_victim import victims as cursor_victims
from tests.reading import committed_values

pytestmark = [pytest.mark.broker, pytest.mark.timeout(3600)]

RUNS = int(os.environ.get("RUNS", "24"))
SEED = int(os.environ.get("SEED", "1"))
PARTITIONS = 2
#: How a run may end that is tried again; the last where a machine left the broker without time, and its controller
#: fenced it: no coordinator answers for half a minute then.
TRIED_AGAIN = ("NotFinishedError", "CheckFailedError", "UndecidableError", "BrokerUnavailableError")


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    with cursor_victims() as running:
        yield running


class Source:
    """A topic with committed, aborted and plain records."""

    def __init__(self, servers: str, topic: str, chance: random.Random) -> None:
        self.topic, self._chance, self.values = topic, chance, list[str]()
        self._producer = Producer({"bootstrap.servers": servers, "transactional.id": f"source-{topic}"})
        self._producer.init_transactions(60)

    def grow(self) -> None:
        for _ in range(self._chance.randint(0, 3)):
            self._producer.begin_transaction()
            new = [f"{len(self.values) + n}" for n in range(self._chance.randint(1, 15))]
            for value in new:
                self._producer.produce(self.topic, value, key=value, partition=self._chance.randrange(PARTITIONS))
            if self._chance.random() < 0.3:
                self._producer.flush(60)
                self._producer.abort_transaction(60)
            else:
                self._producer.commit_transaction(60)
                self.values += new


class Play:
    """Runs of one load name, one after the other or two at a time, some of them killed."""

    def __init__(self, session: Session, victims: Victims, order: Order, source: Source, chance: random.Random) -> None:
        self.session, self.victims, self.order, self.source, self.chance = session, victims, order, source, chance
        self.places, self.keys, self.left, self.kills = 60, 0, list[Order](), 0

    def next_key(self) -> Order:
        self.keys += 1
        return self._of(f"run-{self.keys}")

    def _of(self, key: str, kill_at: int = 0) -> Order:
        return replace(self.order, key=key, kill_at=kill_at)

    def turn(self) -> None:
        """One run or two: retries of what was left, or new ones; each may be killed."""
        self.source.grow()
        orders = [self.left.pop() if self.left and self.chance.random() < 0.6 else self.next_key()]
        if self.chance.random() < 0.3:
            orders.append(self.left.pop() if self.left else self.next_key())
        orders = [self._of(o.key, self.chance.random() < 0.7 and self.chance.randint(1, self.places)) for o in orders]
        for order, ended in zip(orders, self.victims.run(*orders), strict=True):
            self._look(order, ended)
        if self.left and self.chance.random() < 0.5:
            self.clean_up(self.left.pop())

    def _look(self, order: Order, ended: Ended) -> None:
        self.kills += ended.killed
        if not ended.killed and not ended.error:
            self.places = max(20, ended.places)
            return
        assert not ended.error or any(name in ended.error for name in TRIED_AGAIN), ended.error
        self.left.append(order)

    def clean_up(self, order: Order) -> None:
        """Airflow's teardown, and nobody runs that key again."""
        ledger, load = self.session.ledger, order.load
        attempts = ledger.attempts(load)
        if any(a.verdict is Verdict.COMMIT for a in attempts):
            commit(self.session, load, deadline_s=60)
        if attempts:
            poll = CleanPoll(load, up_to=attempts[-1].number, by=f"dag/{order.key}", quiet_s=0)
            end = time.monotonic() + 120
            while (waiting := poll(self.session)) is not None:
                assert time.monotonic() < end, waiting
                time.sleep(0.02)

    def finish(self) -> None:
        while self.left:
            self.clean_up(self.left.pop())
        for _ in range(3):
            (ended,) = self.victims.run(self.next_key())
            if not ended.error:
                return
        raise AssertionError(ended.error)


@pytest.fixture(params=["sqlite", "postgresql"])
def play(
    request: pytest.FixtureRequest,
    kafka: LocalKafka,
    ledger_urls: dict[str, str],
    victims: Victims,
    topic: Callable[..., str],
    tmp_path: Path,
) -> Iterator[Callable[..., Play]]:
    settings = KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})
    with connect(settings, ledger_urls[request.param], NAMESPACE) as session:

        def make(seed: int, **more: Any) -> Play:
            chance = random.Random(seed)
            source, target = topic(PARTITIONS, prefix="source"), topic(PARTITIONS, prefix="target")
            order = Order(
                kafka.bootstrap_servers, ledger_urls[request.param], str(tmp_path), source, target, target, "", **more
            )
            return Play(session, victims, order, Source(kafka.bootstrap_servers, source, chance), chance)

        yield make


def check(play: Play, servers: str) -> None:
    """Each record once, and the ranges of what is committed lie one behind the other."""
    assert committed_values(servers, play.order.target, PARTITIONS) == sorted(play.source.values)
    ledger = play.session.ledger
    rows = [row for row in ledger.loads(NAMESPACE, play.order.name) if row.state is LoadState.COMMITTED]
    ranges = [ledger.range(row.load, row.newest_attempt) for row in rows]
    ends = sorted((at(play, r.since), at(play, r.until)) for r in ranges if r is not None)
    assert [end for _, end in ends[:-1]] == [begin for begin, _ in ends[1:]]
    cursor = ledger.cursor(NAMESPACE, play.order.name)
    assert cursor is not None and cursor.position["offsets"][play.order.source]["0"] == ends[-1][1]


def at(play: Play, position: Any) -> int:
    """Of the first partition."""
    return 0 if position is None else int(position["offsets"][play.order.source]["0"])


@pytest.mark.parametrize("job_chooses", [False, True], ids=["source", "job"])
def test_ranges_are_read_once_each(play: Callable[..., Play], kafka: LocalKafka, job_chooses: bool) -> None:
    played = play(SEED, job_chooses=job_chooses)
    try:
        for _ in range(RUNS):
            played.turn()
        played.finish()
        check(played, kafka.bootstrap_servers)
        records = len(played.source.values)
        print(f"{RUNS} turns, seed {SEED}: {played.keys} keys, {played.kills} kills, {records} records")
        assert played.kills >= RUNS // 8, "hardly anything was killed"
    except BaseException as e:
        e.add_note(f"seed {SEED}, {played.keys} keys, {played.kills} kills")
        raise


def test_killed_at_each_place_of_a_run(play: Callable[..., Play], kafka: LocalKafka) -> None:
    """Then a retry, which reads what the first attempt has pinned. ``EVERY=1``: at every place, not each seventh."""
    played = play(SEED)
    played.source.grow()
    (whole,) = played.victims.run(played.next_key())
    assert not whole.error, whole.error
    every = range(1, max(whole.places, 30), 1 if "EVERY" in os.environ else 7)
    for place in every:
        played.source.grow()
        order = played.next_key()
        played.victims.run(played._of(order.key, place))
        first = played.session.ledger.ranges(order.load)
        played.source.grow()
        (again,) = played.victims.run(order)
        assert not again.error, again.error
        ranges = played.session.ledger.ranges(order.load)
        if first and first[0].until not in (None, first[0].since):  # an empty one is chosen anew
            assert {str(r.until) for r in ranges} == {str(first[0].until)}, "a retry reads what the first attempt did"
    played.finish()
    check(played, kafka.bootstrap_servers)
