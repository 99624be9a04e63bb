"""Plays a cursor world: loads that read on, killed, paused, retried, cleared, beside outages and people.

What the operators call is called here, each load in a process of its own (``tests/crashes/cursor_victim.py``).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from confluent_kafka import Producer

from airflow_kafka_eos import errors
from airflow_kafka_eos.errors import ConfigurationError, KafkaEosError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import LoadState, Verdict
from airflow_kafka_eos.protocol.cleanup import namespace
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.protocol.stages.commit import commit
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.crashes.cursor_victim import NAMESPACE, Ended, Order, Victims
from tests.faults.environment import Environment, delete_topics, short_folder
from tests.faults.hands import Hands
from tests.faults.injecting import healthy
from tests.faults.observing import at_rest, ends_of, read_kafka_python, read_librdkafka
from tests.faults.proxy import FaultProxy
from tests.faults.timeline import Timeline
from tests.faults.worlds.cursor_plan import (
    BACK,
    BROKER,
    CLEANUP,
    CLEAR,
    MAINTENANCE,
    NAMED,
    SET,
    CursorPlan,
    Run,
    Turn,
)
from tests.faults.worlds.going_away import broker_killed, ledger_away
from tests.faults.worlds.outcome import Outcome

PARTITIONS = 2
SETTLE_S = 60.0
#: places that a run passes, until one was counted
PLACES = 60
TRIES = 6
#: how a run may end that is tried again
TRIED_AGAIN = (
    errors.NotFinishedError,
    errors.CheckFailedError,
    errors.UndecidableError,
    errors.SupersededError,
    errors.BrokerUnavailableError,
    errors.LedgerUnavailableError,
    errors.ProducerFencedError,
    errors.StoppedError,
    errors.SourceUnavailableError,
)
_ENDED_WITH = re.compile(r"^(?:airflow_kafka_eos\.errors\.)?([\w.]+)(?:: |$)", re.MULTILINE)

#: of one partition: from, to
Segment = tuple[int, int]


@dataclass
class Source:
    """A topic with committed and aborted records, and where each committed one is."""

    servers: str
    topic: str
    committed: dict[tuple[int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producer = Producer(
            {"bootstrap.servers": self.servers, "transactional.id": f"source-{self.topic}", "log_level": 0}
        )
        self._producer.init_transactions(60)
        self._count = 0

    def grow(self, chance: int) -> None:
        """By up to two transactions; one in three is aborted."""
        for n in range(chance % 3):
            found: dict[tuple[int, int], str] = {}

            def note(error: Any, message: Any, into: dict[tuple[int, int], str] = found) -> None:
                assert error is None, error
                into[message.partition(), message.offset()] = message.value().decode()

            self._producer.begin_transaction()
            for k in range(1 + chance % 13):
                self._count += 1
                partition = (chance + k * (n + 2)) % PARTITIONS
                self._producer.produce(
                    self.topic, f"{self._count}", key=f"{self._count}", partition=partition, on_delivery=note
                )
            self._producer.flush(60)
            if (chance + n) % 3 == 0:
                self._producer.abort_transaction(60)
            else:
                self._producer.commit_transaction(60)
                self.committed |= found

    def visible(self) -> dict[tuple[int, int], str]:
        """What readers see of what was committed, which is not always all of it.

        A broker that comes up may forget the commit's marker of a partition (rule: forgotten-markers). For a load the
        package looks for that; for this application nobody does, and its next transaction there ends both as its own
        ends: committed, it says, and aborted in the log.
        """
        ends = ends_of(self.servers, {self.topic: PARTITIONS})
        records = (*read_librdkafka(self.servers, ends), *read_kafka_python(self.servers, ends))
        seen = {(record.partition, record.offset) for record in records}
        return {place: value for place, value in self.committed.items() if place in seen}


def play(plan: CursorPlan, kafka: LocalKafka, environment: Environment, victims: Victims) -> Outcome:
    folder = environment.folder / f"cursors-{plan.seed}-{environment.number()}"
    folder.mkdir(parents=True)
    outcome = Outcome(plan, folder)
    with outcome.played(), ExitStack() as stack:
        _World(plan, kafka, environment, victims, stack, outcome).play()
    return outcome


@dataclass
class _World:
    plan: CursorPlan
    kafka: LocalKafka
    environment: Environment
    victims: Victims
    stack: ExitStack
    outcome: Outcome

    def __post_init__(self) -> None:
        folder, name = self.outcome.folder, self.outcome.folder.name
        self.timeline = Timeline(str(folder), "world")
        topics = [f"{name}-{what}" for what in ("source", "target", "named")]
        for topic in topics:
            self.kafka.create_topic(topic, partitions=PARTITIONS)
        self.stack.callback(delete_topics, self.kafka.bootstrap_servers, topics, self.timeline)
        database = self.environment.ledger(self.plan.ledger, name.replace("-", "_"), folder)
        self.stack.callback(database.drop)
        self.url, self.proxy, theirs = database.url, None, database.url
        if database.server is not None:
            short = self.stack.enter_context(short_folder())
            self.proxy = FaultProxy(database.socket(database.server.directory), database.socket(short))
            self.stack.callback(self.proxy.close)
            theirs = database.url_through(short)
        servers = self.kafka.bootstrap_servers
        source, target, self.named_topic = topics
        self.order = Order(
            servers, theirs, str(folder), source, target, name, "", job_chooses=self.plan.job_chooses
        )
        self.source = Source(servers, source)
        self.places, self.keys = PLACES, 0
        self.left: list[Order] = []
        self.done: list[Order] = []
        #: positions that the cursor was seen at
        self.positions: list[Any] = []
        #: by partition, what the cursor's own loads have read before a person went back; and where they began since
        self.segments: dict[int, list[Segment]] = {p: [] for p in range(PARTITIONS)}
        self.since = dict.fromkeys(range(PARTITIONS), 0)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": self.kafka.bootstrap_servers})
        with connect(settings, self.url, NAMESPACE) as made:
            yield made

    # -- turns -----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        try:
            for turn in self.plan.turns:
                self.source.grow(turn.chance)
                self._turn(turn)
        finally:
            healthy(self.kafka)
        self._finish()
        self._judge()

    def _turn(self, turn: Turn) -> None:
        hands = Hands()
        orders = [self._order(run) for run in turn.runs]
        if turn.outage:
            hands.begin(lambda: self._outage(turn))
        if turn.person and turn.person_meanwhile:
            hands.begin(lambda: self._person(turn, meanwhile=True))
        for order, ended in zip(orders, self.victims.run(*orders), strict=True):
            self._look(order, ended)
        hands.join()
        self.outcome.violations += hands.violations
        if turn.person and not turn.person_meanwhile:
            self._person(turn, meanwhile=False)
        self._note_position()

    def _order(self, run: Run) -> Order:
        if run.retries and self.left:
            order = self.left.pop(0)
        else:
            self.keys += 1
            order = replace(self.order, key=f"run-{self.keys}")
        at = 1 + int(run.at * self.places) if run.struck else 0
        return replace(order, kill_at=at, pause_s=run.seconds if run.struck == "pause" else 0.0)

    def _look(self, order: Order, ended: Ended) -> None:
        kind = _kind(ended.error)
        self.timeline.log(
            "run ended", key=order.key, killed=ended.killed, places=ended.places, error=ended.error[-300:]
        )
        if order.kill_at:
            struck = ended.killed or (order.pause_s > 0 and ended.places >= order.kill_at)
            self.outcome.strikes.append(("pause" if order.pause_s else "kill", "a run", struck))
        if not ended.killed and not ended.error:
            self.places = max(20, ended.places)
            self.done.append(order)
            return
        if ended.error and order.named is not None and kind is ConfigurationError:
            self.timeline.log("a range by name is refused", key=order.key)
            return
        if ended.error and (kind is None or not issubclass(kind, TRIED_AGAIN)):
            self.outcome.wrong("unexpected_error", f"{order.key}: {ended.error[-2000:]}")
        self.left.append(order)

    def _outage(self, turn: Turn) -> None:
        time.sleep(turn.delay_s)
        self.timeline.log(f"{turn.outage} goes away")
        if turn.outage == BROKER:
            broker_killed(self.kafka, turn.seconds)
        else:
            ledger_away(self.url, self.proxy, turn.seconds)
        self.outcome.strikes.append((f"{turn.outage} away", "a moment", True))
        self.timeline.log(f"{turn.outage} is there again")

    # -- people ----------------------------------------------------------------------------------------------------

    def _person(self, turn: Turn, *, meanwhile: bool) -> None:
        if meanwhile:
            time.sleep(turn.delay_s)
        try:
            did = self._does(turn)
        except KafkaEosError as e:
            self.timeline.log("a person is refused", what=turn.person, error=f"{type(e).__name__}: {e}"[:300])
            did = False
        self.outcome.strikes.append((turn.person, "beside runs" if meanwhile else "between runs", did))

    def _does(self, turn: Turn) -> bool:
        match turn.person:
            case _ if turn.person in (SET, BACK):
                return self._set(turn)
            case _ if turn.person == NAMED:
                return self._names(turn)
            case _ if turn.person == CLEAR:
                return self._clear(turn)
            case _ if turn.person == CLEANUP:
                if not self.left:
                    return False
                self.clean_up(self.left.pop(turn.chance % len(self.left)))
                return True
            case _:
                assert turn.person == MAINTENANCE
                return self._maintenance(timedelta(hours=1)) >= 0

    def _set(self, turn: Turn) -> bool:
        """``cursors set``: to where it is, so that what is under way is not decided; or to where it was before."""
        with self.session() as session:
            row = session.ledger.cursor(NAMESPACE, self.order.name)
            if row is None or row.position is None:
                return False
            to = row.position
            if turn.person == BACK and not self.positions:
                return False
            if turn.person == BACK:
                to = self.positions[turn.chance % len(self.positions)]
            said = {"expected": row.position, "moves": row.moves, "to": to, "by": "a person", "reason": "to see"}
            session.ledger.set_cursor(NAMESPACE, self.order.name, **said)
        self.timeline.log("cursors set", at=str(row.position), to=str(to))
        for partition in range(PARTITIONS):
            begin, end = self.since[partition], _offset(row.position, self.source.topic, partition)
            self.segments[partition].append((begin, end))
            self.since[partition] = _offset(to, self.source.topic, partition)
        return True

    def _names(self, turn: Turn) -> bool:
        """A run whose conf names a range behind the cursor."""
        if len(self.positions) < 2:
            return False
        first = turn.chance % (len(self.positions) - 1)
        last = first + 1 + turn.chance // 7 % (len(self.positions) - 1 - first)
        named = self.positions[first], self.positions[last]
        order = replace(self.order, key=f"named-{turn.chance}-{self.keys}", target=self.named_topic, named=named)
        kill_at = turn.chance % (2 * self.places)  # every second time it lives
        (ended,) = self.victims.run(replace(order, kill_at=kill_at))
        self._look(order, ended)
        return not ended.error

    def _clear(self, turn: Turn) -> bool:
        """A run that has succeeded is cleared: nothing is written again."""
        if not self.done:
            return False
        order = replace(self.done[turn.chance % len(self.done)], kill_at=0, pause_s=0.0)
        (ended,) = self.victims.run(order)
        if ended.error:
            text = f"a cleared run that had succeeded, {order.key}: {ended.error[-1500:]}"
            self.outcome.wrong("unexpected_error", text)
        return True

    def _maintenance(self, abandoned_after: timedelta) -> int:
        with self.session() as session:
            left = namespace.find(session, abandoned_after=abandoned_after)
            ours = {load: n for load, n in left.loads.items() if load.name == self.order.name}
            swept = namespace.clean(session, ours, by="maintenance", quiet_s=0, deadline_s=60)
        for one in swept:
            if one.error is not None:
                self.timeline.log("maintenance", load=str(one.load), error=str(one.error)[:300])
        return sum(len(one.aborted) for one in swept)

    def clean_up(self, order: Order) -> None:
        """Airflow's teardown, and nobody runs that key again."""
        with self.session() as session:
            attempts = session.ledger.attempts(order.load)
            if any(a.verdict is Verdict.COMMIT for a in attempts):
                commit(session, order.load, deadline_s=60)
            if attempts:
                poll = CleanPoll(order.load, up_to=attempts[-1].number, by=f"dag/{order.key}", quiet_s=0)
                end = time.monotonic() + 120
                while (waiting := poll(session)) is not None:
                    assert time.monotonic() < end, waiting
                    time.sleep(0.02)
        self.timeline.log("cleaned up", key=order.key)

    def _note_position(self) -> None:
        with self.session() as session:
            row = session.ledger.cursor(NAMESPACE, self.order.name)
            state = None if row is None else row.holder_state
        if row is None or row.position is None or (state is not None and state.is_unverified):
            return
        if row.position not in self.positions:
            self.positions.append(row.position)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        for order in self.left:
            self.clean_up(order)
        self.left.clear()
        self.source.grow(2)
        said = ""
        for _ in range(TRIES):
            self.keys += 1
            order = replace(self.order, key=f"run-{self.keys}")
            (ended,) = self.victims.run(order)
            if not ended.error:
                return
            said = ended.error
            self.clean_up(order)
        self.outcome.wrong("unfinished", f"a last run does not succeed: {said[-1500:]}")

    def _judge(self) -> None:
        by_maintenance = self._maintenance(timedelta(milliseconds=1))
        servers = self.kafka.bootstrap_servers
        topics = dict.fromkeys((self.order.target, self.named_topic), PARTITIONS)
        brokers = at_rest(servers, topics, SETTLE_S)
        for one in brokers.open:
            self.outcome.wrong("left_open", f"{one.transactional_id} is open")
        for place, (stable, end) in brokers.short.items():
            self.outcome.wrong("stable_short", f"{place}: last stable offset {stable}, end {end}")
        final = read_librdkafka(servers, brokers.stable)
        if sorted(_where(final)) != sorted(_where(read_kafka_python(servers, brokers.stable))):
            self.outcome.wrong("reader_differs", "librdkafka and kafka-python see different records")
        with self.session() as session:
            row = session.ledger.cursor(NAMESPACE, self.order.name)
            every = session.ledger.loads(NAMESPACE, self.order.name)
            unfinished = [a for a in session.ledger.unfinished(NAMESPACE) if a.load.name == self.order.name]
        assert row is not None
        told_as_committed = len(self.source.committed)
        self.source.committed = self.source.visible()
        taken_back = told_as_committed - len(self.source.committed)
        if taken_back and not any(turn.outage == BROKER for turn in self.plan.turns):
            self.outcome.wrong("harness", f"{taken_back} committed records of the source are not visible")
        for attempt in unfinished:
            self.outcome.wrong("left_open", f"{attempt.load} attempt {attempt.number} is not closed")
        for load in every:
            if load.state not in (LoadState.COMMITTED, LoadState.ABORTED):
                self.outcome.wrong("unfinished", f"{load.load} is {load.state.value}")
        self._compare(_values(final, self.order.target), self._due(row.position), "the cursor's own loads")
        committed = {load.load.key for load in every if load.state is LoadState.COMMITTED}
        self._compare_named(_values(final, self.named_topic), every, committed)
        told = {order.key for order in self.done}
        if missing := told - committed:
            self.outcome.wrong("reported_wrong", f"runs that were told that they succeeded: {sorted(missing)}")
        self.outcome.figures |= {
            "records": len(final),
            "runs": self.keys,
            "loads": len(every),
            "records of the source that Kafka took back": taken_back,
            "transactions that maintenance ended at the end": by_maintenance,
        }

    def _due(self, position: Any) -> Counter[str]:
        """How often each record is to be there: once for each segment that the cursor has gone through."""
        due: Counter[str] = Counter()
        for (partition, offset), value in self.source.committed.items():
            last = self.since[partition], _offset(position, self.source.topic, partition)
            times = sum(begin <= offset < end for begin, end in (*self.segments[partition], last))
            due[value] += times
            if times == 0:
                self.outcome.wrong("lost", f"record {value} of the source is behind no position of the cursor")
        return due

    def _compare(self, found: Counter[str], due: Counter[str], whose: str) -> None:
        if missing := due - found:
            self.outcome.wrong("lost", f"{whose}: {sum(missing.values())} records, such as {sorted(missing)[:5]}")
        if more := found - due:
            self.outcome.wrong("duplicate", f"{whose}: {sum(more.values())} records, such as {sorted(more)[:5]}")

    def _compare_named(self, found: Counter[str], every: Any, committed: set[str]) -> None:
        with self.session() as session:
            keys = [load.load for load in every if load.load.key in committed and load.load.key.startswith("named-")]
            ranges = [session.ledger.range(load, session.ledger.attempts(load)[-1].number) for load in keys]
        due: Counter[str] = Counter()
        for (partition, offset), value in self.source.committed.items():
            for one in ranges:
                assert one is not None
                begin, end = (_offset(at, self.source.topic, partition) for at in (one.since, one.until))
                due[value] += begin <= offset < end
        if doubled := [value for value, times in due.items() if times > 1]:
            self.outcome.wrong("duplicate", f"two ranges by name have the same records, such as {doubled[:5]}")
        self._compare(found, +due, "ranges by name")


def _offset(position: Any, topic: str, partition: int) -> int:
    return 0 if position is None else int(position["offsets"][topic].get(str(partition), 0))


def _values(records: Any, topic: str) -> Counter[str]:
    return Counter((r.value or b"").decode() for r in records if r.topic == topic)


def _where(records: Any) -> list[tuple[str, int, int, bytes]]:
    return [(r.topic, r.partition, r.offset, r.value or b"") for r in records]


def _kind(error: str) -> type[KafkaEosError] | None:
    """What it has ended with, where that is one of the package's errors."""
    names = _ENDED_WITH.findall(error.strip().rpartition("Traceback (most recent call last)")[2])
    for name in reversed(names):
        found = getattr(errors, name, None)
        if isinstance(found, type) and issubclass(found, KafkaEosError):
            return found
    return None
