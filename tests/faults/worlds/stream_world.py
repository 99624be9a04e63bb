"""Plays a stream world: a growing source, a driver that is kept running, what strikes, and at the end the count."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from airflow_kafka_eos.errors import KafkaEosError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.micro_batch import batch_of
from airflow_kafka_eos.protocol.cleanup import namespace
from airflow_kafka_eos.protocol.cleanup.poll import CleanPoll
from airflow_kafka_eos.protocol.session import Session, connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.spark import quick_settings
from tests.faults.environment import Environment, delete_topics, short_folder
from tests.faults.facts import Record
from tests.faults.hands import Hands
from tests.faults.injecting import healthy
from tests.faults.ledger_server import LedgerServer
from tests.faults.observing import at_rest, read_librdkafka
from tests.faults.proxy import FaultProxy
from tests.faults.tailing import Tail
from tests.faults.timeline import Timeline
from tests.faults.worlds.checkpoints import Query
from tests.faults.worlds.drivers import MARK, STEP_S, UP_S, Driver, ForkedDriver, Supervisor, mark
from tests.faults.worlds.going_away import broker_killed, ledger_away
from tests.faults.worlds.outcome import Outcome
from tests.faults.worlds.restored import LedgerRestored
from tests.faults.worlds.stream_judge import BEAT, Batch, Beat, QueryFact, judge, standing, torn_s
from tests.faults.worlds.stream_plan import BETWEEN_LIVES, FORKS, Kind, StreamPlan, Strike
from tests.spark.conftest import kafka_source_jars

NAMESPACE = "worlds"
#: so long the whole source may take behind the last strike
FINISH_S = 400.0
SETTLE_S = 60.0
#: the source is so many files ahead of what is visible, and no more; and never larger than so many
AHEAD_FILES, MOST_FILES = 4, 60
BEAT_S = 0.2
_ONCE = {"spark.stage.maxConsecutiveAttempts": "1", "spark.stage.ignoreDecommissionFetchFailure": "false"}
_ONCE |= {"spark.speculation": "false"}
#: how a driver says that its checkpoint is not the one that the ledger knows
_OTHER = "OtherCheckpointError"


class TimedTail(Tail):
    """Has when each record came."""

    def __init__(self, servers: str, topics: dict[str, int]) -> None:
        super().__init__(servers, topics)
        self.arrived: list[tuple[float, Record]] = []

    def _take(self, got: Any) -> None:
        before = len(self.records)
        super()._take(got)
        now = time.monotonic()
        self.arrived += [(now, record) for record in self.records[before:]]


def play(plan: StreamPlan, kafka: LocalKafka, environment: Environment, engine: str) -> Outcome:
    """
    :param engine: the address of :func:`.forked_engine.engine`.
    """
    folder = environment.folder / f"streams-{plan.seed}-{environment.number()}"
    folder.mkdir(parents=True)
    outcome = Outcome(plan, folder)
    with outcome.played(), ExitStack() as stack:
        own = environment
        if any(s.kind is Kind.LEDGER_KILL for s in plan.strikes):
            own = stack.enter_context(Environment(environment.folder, environment))
        StreamWorld(plan, kafka, own, folder, stack, outcome, engine).play()
    return outcome


@dataclass
class StreamWorld:
    plan: StreamPlan
    kafka: LocalKafka
    environment: Environment
    folder: Path
    stack: ExitStack
    outcome: Outcome
    engine: str
    namespace: str = NAMESPACE
    downs: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, name = self.plan, self.folder.name
        self.timeline = Timeline(str(self.folder), "world")
        self.mark = mark()
        self.dice = random.Random(f"world {plan.seed}")
        self.hands, self.over = Hands(), threading.Event()
        self.struck_all, self.is_whole = threading.Event(), threading.Event()
        each = {"format": [False], "each": [True], "both": [False, True], "two": [False, False]}[plan.sinks]
        self.queries = [Query(f"{name}-{'ab'[n]}", f"{name}-{'ab'[n]}", one, self.folder) for n, one in enumerate(each)]
        self.topics = {query.topic: plan.partitions for query in self.queries}
        self.source_topic = f"{name}-source"
        made = [*self.topics, *([self.source_topic] if plan.source == "kafka" else [])]
        for topic in made:
            self.kafka.create_topic(topic, partitions=plan.partitions)
        self.stack.callback(delete_topics, self.kafka.bootstrap_servers, made, self.timeline)
        database = self.environment.ledger(plan.ledger, f"streams_{self.folder.name.replace('-', '_')}", self.folder)
        self.database = database
        self.stack.callback(database.drop)
        self.ledger_url, self.proxy = database.url, None
        if database.server is not None:
            short = self.stack.enter_context(short_folder())
            self.proxy = FaultProxy(database.socket(database.server.directory), database.socket(short))
            self.stack.callback(self.proxy.close)
        self.driver_url = self.ledger_url if database.server is None else database.url_through(short)
        (self.folder / "source").mkdir()
        self.written, self._most_files = 0, MOST_FILES
        self.tail = TimedTail(self.kafka.bootstrap_servers, self.topics)
        self.beats: dict[str, float] = {}
        self.supervisor = Supervisor(self._start, self.timeline, self._ended)
        self.restored = LedgerRestored(self)

    # -- the run ---------------------------------------------------------------------------------------------------

    def play(self) -> None:
        tail = self.tail
        tail.start()
        begun = time.monotonic()
        try:
            self.hands.begin(self._grow)
            self.hands.begin(self._beat)
            self.supervisor.begin()
            for number, strike in enumerate(self.plan.strikes):
                done = self._strike(number, strike)
                self.outcome.strikes.append((strike.kind.value, strike.where, done))
                self.timeline.log("strike is over", number=number, struck=done)
            self.struck_all.set()
            self._until_all_is_seen(tail)
            self.supervisor.stop()
            (self.folder / "stop").touch()
            self._wait_for_the_driver()
        finally:
            self.over.set()
            self.supervisor.end()
            self.hands.join()
            self.outcome.violations += self.hands.violations
            healthy(self.kafka)
        self._judge(tail, begun)

    def _grow(self) -> None:
        """The source; it waits for nobody."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        while not self.struck_all.is_set() or self.written < self.plan.files:
            # as fast as drivers take it, or a little faster: each life is to have work left
            if self.over.wait(self.plan.pause_ms / 1000):
                return
            if self.written - self._taken_files() > AHEAD_FILES or self.written >= self._most_files:
                continue
            number = self.written
            lines = [f"{number}-{row}" for row in range(self.plan.rows)]
            if self.plan.source == "kafka":
                for line in lines:
                    producer.produce(self.source_topic, line, key=line)
                while producer.flush(1) and not self.over.is_set():
                    pass
            else:
                (self.folder / "new").write_text("\n".join(lines) + "\n")
                (self.folder / "new").rename(self.folder / "source" / f"{number:03}.txt")
            self.written = number + 1
        self.is_whole.set()
        self.timeline.log("the source is whole", files=self.written)

    def grow_on(self) -> None:
        """A source that has come to its end gets some more: a query that has no new data asks for no batch."""
        self._most_files = max(self._most_files, self.written + AHEAD_FILES)

    def _taken_files(self) -> int:
        """How many files' worth of rows the slowest query has shown."""
        seen = dict.fromkeys(self.topics, 0)
        for record in list(self.tail.records):
            seen[record.topic] += not record.said.startswith(BEAT.encode())
        return min(seen.values()) // self.plan.rows

    def _beat(self) -> None:
        """Another application's plain records, by which is seen for how long readers stand still."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})
        number = 0

        def noted(error: Any, message: Any) -> None:
            if error is None:
                self.beats.setdefault(message.value().decode(), time.monotonic())

        while not self.over.wait(BEAT_S):
            for topic, partitions in self.topics.items():
                for partition in range(partitions):
                    number += 1
                    producer.produce(topic, f"{BEAT}{number}", partition=partition, on_delivery=noted)
            producer.poll(0)
        producer.flush(30)

    def _start(self, life: int) -> Driver:
        plan = self.plan
        source: dict[str, Any] = {"folder": str(self.folder / "source"), "files": plan.files_per_batch}
        spark = dict(_ONCE) if plan.runs_once else {}
        if plan.source == "kafka":
            source = {"topic": self.source_topic, "records": plan.rows * plan.files_per_batch}
            spark["spark.jars"] = ",".join(map(str, kafka_source_jars()))
        spec = {
            "cores": plan.cores,
            "spark": spark,
            "stop": str(self.folder / "stop"),
            "available_now": plan.available_now,
            "tasks": plan.tasks,
            "bootstrap": self.kafka.bootstrap_servers,
            "namespace": NAMESPACE,
            "options": {
                "transaction.naming": plan.naming,
                "transaction.two.phase.commit": plan.two_phase,
                "writer": plan.writer,
            },
            "queries": [
                {"name": q.name, "topic": q.topic, "checkpoint": str(q.checkpoint), "each": q.each}
                for q in self.queries
            ],
            "source": source,
        }
        environ = quick_settings(self.folder / "conf") | {
            "AIRFLOW_KAFKA_EOS_LEDGER": self.driver_url,
            # each driver compiles all that it imports, else
            "PYTHONDONTWRITEBYTECODE": "",
            MARK: self.mark,
        }
        if plan.engine == FORKS:
            return ForkedDriver(self.engine, life, self.folder, spec, environ)
        return Driver(life, self.folder, spec, environ)

    def _ended(self, driver: Driver) -> None:
        """A person looks why a driver has ended."""
        for text in driver.bare_errors():
            self.outcome.wrong("unexpected_error", f"driver {driver.number}: {text}")
        if _OTHER not in driver.errors():
            return
        for query in self.queries:
            if f"{query.name!r}" not in driver.text:
                continue
            if query.saved("newest").exists():
                self.timeline.log("the newest checkpoint is put back", query=query.name)
                shutil.rmtree(query.checkpoint)
                query.saved("newest").rename(query.checkpoint)
            elif query.moves:
                with contextlib.suppress(KafkaEosError), self.session() as session:
                    session.ledger.set_stream(NAMESPACE, query.name, checkpoint=str(query.checkpoint))
                    self.timeline.log("a person says where the checkpoint is", query=query.name)

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": self.kafka.bootstrap_servers})
        with connect(settings, self.ledger_url, NAMESPACE) as made:
            yield made

    # -- strikes ---------------------------------------------------------------------------------------------------

    def _strike(self, number: int, strike: Strike) -> bool:
        """Whether it fell."""
        self.timeline.log("strike is armed", number=number, kind=strike.kind.value, step=strike.step, nth=strike.nth)
        if strike.kind is Kind.LEDGER_RESTORED and not self.restored.wait_bound():
            return False
        if not strike.step:
            if not self.supervisor.wait_up(UP_S):
                return False
            time.sleep(strike.delay_ms / 1000)
            return self._fall(number, strike)
        if strike.kind in BETWEEN_LIVES:
            if not self.supervisor.wait_up(UP_S):
                return False
            with self.supervisor.held():
                comes = self.comes_by(str(number), strike.step, strike.nth, Kind.DRIVER_KILL, STEP_S)
                return comes and self._act(strike)
        if not self.comes_by(str(number), strike.step, strike.nth, strike.kind):
            return False
        if strike.kind in (Kind.DRIVER_KILL, Kind.JVM_KILL, Kind.WORKER_KILL):
            return True
        at = time.monotonic()
        try:
            return self._act(strike)
        finally:
            (self.folder / f"done-{number}").touch()
            # who waits at the step is as good as dead
            self.downs.append((at, time.monotonic()))

    def comes_by(self, name: str, step: str, nth: int, kind: Kind, up_s: float = UP_S) -> bool:
        """Whether a process comes by at the step, where it is struck, or waits for what strikes it from outside.

        :param name: of the strike, in the names of its files.
        :param up_s: so long a driver may need to be up; little where none is started any more.
        """
        armed, taken = self.folder / "armed.json", self.folder / f"taken-{name}"
        armed.with_suffix(".new").write_text(json.dumps({"number": name, "step": step, "nth": nth, "kind": kind.value}))
        armed.with_suffix(".new").rename(armed)
        begun = time.monotonic()
        until: float | None = None
        while not taken.exists():
            if until is None and self.supervisor.is_up:
                until = time.monotonic() + STEP_S
            if time.monotonic() > (until or begun + up_s):
                break
            time.sleep(0.01)
        armed.unlink()
        if taken.exists():
            self.timeline.log("strike falls", number=name, step=step)
        return taken.exists()

    def _fall(self, number: int, strike: Strike) -> bool:
        """At a moment, from outside."""
        driver = self.supervisor.current
        self.timeline.log("strike falls", number=number, at="a moment")
        if strike.kind is Kind.DRIVER_KILL:
            return driver is not None and driver.kill() > 0
        if strike.kind is Kind.JVM_KILL:
            return driver is not None and driver.kill(only_jvm=True) > 0
        if strike.kind is Kind.WORKER_KILL:
            workers = [] if driver is None else driver.workers()
            for one in self.dice.sample(workers, min(1, len(workers))):
                one.kill()
            return bool(workers)
        if strike.kind in BETWEEN_LIVES:
            with self.supervisor.held():
                if driver is not None:
                    driver.kill()
                return self._act(strike)
        return self._act(strike)

    def _act(self, strike: Strike) -> bool:
        match strike.kind:
            case Kind.BROKER_KILL:
                return self._broker(strike)
            case Kind.LEDGER_AWAY:
                return self._ledger_away(strike)
            case Kind.LEDGER_KILL:
                return self._ledger_killed(strike)
            case Kind.SECOND_DRIVER:
                return self._second(strike)
            case Kind.MAINTENANCE:
                return self._maintenance() is not None
            case Kind.CLEANUP:
                return any([self._cleanup(query) for query in self.queries])
            case Kind.CHECKPOINT_MOVED:
                return self._moved()
            case Kind.CHECKPOINT_OLDER:
                return self._older()
            case _:
                return self.restored.strike(strike)

    def _broker(self, strike: Strike) -> bool:
        at = time.monotonic()
        broker_killed(self.kafka, strike.seconds)
        self.downs.append((at, time.monotonic()))
        return True

    def _ledger_away(self, strike: Strike) -> bool:
        at = time.monotonic()
        ledger_away(self.ledger_url, self.proxy, strike.seconds)
        self.downs.append((at, time.monotonic()))
        return True

    def _ledger_killed(self, strike: Strike) -> bool:
        at = time.monotonic()
        server = LedgerServer.of(self.ledger_url)
        server.kill()
        time.sleep(strike.seconds)
        server.start()
        self.downs.append((at, time.monotonic()))
        return True

    def _second(self, strike: Strike) -> bool:
        second = self.supervisor.new()
        until = time.monotonic() + UP_S
        while second.lives and not second.is_up and time.monotonic() < until:
            time.sleep(0.05)
        was_up = second.is_up
        until = time.monotonic() + strike.seconds
        while second.lives and time.monotonic() < until:
            time.sleep(0.05)
        self.timeline.log("the second driver", code=second.exit_code, errors=sorted(second.errors()))
        second.kill()
        for text in second.bare_errors():
            self.outcome.wrong("unexpected_error", f"second driver {second.number}: {text}")
        return was_up

    def _maintenance(self) -> int | None:
        """As its DAG; how many transactions it has ended. None: it failed."""
        try:
            with self.session() as session:
                left = namespace.find(session, abandoned_after=timedelta(milliseconds=1))
                ours = {load: n for load, n in left.loads.items() if load.name in {q.name for q in self.queries}}
                swept = namespace.clean(session, ours, by="maintenance", quiet_s=0, deadline_s=60)
        except KafkaEosError as e:
            self.timeline.log("maintenance failed", error=str(e)[:500])
            return None
        errors = [str(one.error) for one in swept if one.error is not None]
        self.timeline.log("maintenance", loads=len(ours), errors=errors, aborted=[one.aborted for one in swept])
        return None if errors else sum(len(one.aborted) for one in swept)

    def _cleanup(self, query: Query) -> bool:
        """``airflow-kafka-eos cleanup`` of the newest batch, whatever it is at."""
        try:
            with self.session() as session:
                every = [(batch_of(row.load), row) for row in session.ledger.loads(NAMESPACE, query.name)]
                found = [(batch[1], row.load) for batch, row in every if batch is not None]
                if not found:
                    return False
                load = max(found)[1]
                up_to = session.ledger.attempts(load)[-1].number
                poll = CleanPoll(load, up_to=up_to, by="a person", quiet_s=0)
                until = time.monotonic() + 30
                while (waiting := poll(session)) is not None and time.monotonic() < until:
                    time.sleep(0.05)
                self.timeline.log("cleanup by hand", load=str(load), waiting=waiting)
                return True
        except KafkaEosError as e:
            self.timeline.log("cleanup by hand failed", error=str(e)[:500])
            return False

    def _moved(self) -> bool:
        self.wait_dead()
        for query in self.queries:
            if not query.checkpoint.exists():
                return False
        for query in self.queries:
            old = query.checkpoint
            query.moves += 1
            old.rename(query.checkpoint)
        return True

    def _older(self) -> bool:
        """Saved now; put back when the next driver has gone on for a while and is dead, too."""
        self.wait_dead()
        if not all(query.checkpoint.exists() for query in self.queries):
            return False
        for query in self.queries:
            shutil.rmtree(query.saved("older"), ignore_errors=True)
            shutil.copytree(query.checkpoint, query.saved("older"))
        if not self.goes_on():
            return False
        driver = self.supervisor.current
        if driver is not None:
            driver.kill()
        self.wait_dead()
        for query in self.queries:
            shutil.rmtree(query.saved("newest"), ignore_errors=True)
            query.checkpoint.rename(query.saved("newest"))
            query.saved("older").rename(query.checkpoint)
        return True

    def goes_on(self) -> bool:
        """Let the next driver run until it has decided a batch, or for a while; whether it came up."""
        with self.supervisor.released():
            if not self.supervisor.wait_up(UP_S):
                return False
            decided = self.decided()
            until = time.monotonic() + STEP_S
            while self.decided() == decided and time.monotonic() < until:
                time.sleep(0.2)
        return True

    def decided(self) -> list[int | None]:
        with contextlib.suppress(KafkaEosError), self.session() as session:
            rows = [session.ledger.stream(NAMESPACE, query.name) for query in self.queries]
            return [None if row is None else row.decided for row in rows]
        return []

    def wait_dead(self) -> None:
        """Until no process of a driver is left: a person looks before he touches a checkpoint."""
        until = time.monotonic() + 60
        while any(driver.lives or driver.remains() for driver in list(self.supervisor.drivers)):
            driver = self.supervisor.current
            if driver is not None and driver.lives and driver.is_up:
                driver.kill()
            assert time.monotonic() < until, "drivers that do not die"
            time.sleep(0.05)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _until_all_is_seen(self, tail: TimedTail) -> None:
        until = time.monotonic() + FINISH_S + self.plan.files * self.plan.pause_ms / 1000
        while time.monotonic() < until:
            seen = sum(1 for r in tail.records if not r.said.startswith(BEAT.encode()))
            due = self.written * self.plan.rows * len(self.queries)
            if self.is_whole.is_set() and seen >= due and self._is_noted():
                return
            time.sleep(0.1)
        driver = self.supervisor.current
        said = "no driver" if driver is None else driver.text[-3000:]
        self.outcome.wrong("unfinished", f"{seen} of {due} rows are visible; the driver says: {said}")

    def _is_noted(self) -> bool:
        """Whether Spark has noted each planned batch as done."""
        return all(query.planned() == query.noted() for query in self.queries)

    def _wait_for_the_driver(self) -> None:
        driver = self.supervisor.current
        until = time.monotonic() + 30
        while driver is not None and driver.lives and time.monotonic() < until:
            time.sleep(0.05)
        if driver is not None:
            self.timeline.log("the last driver", code=driver.exit_code)

    def _judge(self, tail: TimedTail, begun: float) -> None:
        by_maintenance = self._maintenance()
        if by_maintenance is None:
            by_maintenance = self._maintenance()
        brokers = at_rest(self.kafka.bootstrap_servers, self.topics, SETTLE_S)
        if not tail.stop(brokers.stable):
            self.outcome.wrong("harness", f"the tailing reader did not come to its end: {tail.troubles[-3:]}")
        final = read_librdkafka(self.kafka.bootstrap_servers, brokers.stable)
        for place, (stable, end) in brokers.short.items():
            self.outcome.wrong("stable_short", f"{place}: last stable offset {stable}, end {end}")
        expected = [f"{n}-{row}" for n in range(self.written) for row in range(self.plan.rows)]
        batches = 0
        with self.session() as session:
            open_ = [one.transactional_id for one in brokers.open]
            for query in self.queries:
                fact = QueryFact(
                    query.name,
                    expected,
                    _values(final, query.topic),
                    _values(tail.records, query.topic),
                    _batches(session, query.name),
                    getattr(session.ledger.stream(NAMESPACE, query.name), "decided", None),
                    [
                        f"{row.load} attempt {row.number}"
                        for row in session.ledger.unfinished(NAMESPACE)
                        if row.load.name == query.name
                    ],
                    open_,
                    self.restored.forgotten[query.name],
                )
                batches += len(fact.batches)
                self.outcome.violations += judge(fact)
        self._figures(tail, batches, by_maintenance or 0, begun)

    def _figures(self, tail: TimedTail, batches: int, by_maintenance: int, begun: float) -> None:
        seen: dict[str, float] = {}
        rows: dict[str, list[tuple[float, str]]] = {query.topic: [] for query in self.queries}
        for at, record in tail.arrived:
            text = record.said.decode()
            if text.startswith(BEAT):
                seen.setdefault(text, at)
            else:
                rows[record.topic].append((at, text))
        beats = [Beat(written, seen[name]) for name, written in list(self.beats.items()) if name in seen]
        downs = [*self.supervisor.downs, *self.downs]
        longest, beyond = standing(beats, downs)
        self.outcome.figures |= {
            "rows": sum(map(len, rows.values())),
            "batches": batches,
            "lives of drivers": self.supervisor.lives,
            "transactions that maintenance ended at the end": by_maintenance,
            "longest restart, s": round(max((end - at for at, end in self.supervisor.downs), default=0.0), 1),
            "readers stood still, s": round(longest, 2),
            "of it beyond what was down, s": round(beyond, 2),
            "a file visible in part, s": round(max(torn_s(a, self.plan.rows) for a in rows.values()), 2),
        } | self.restored.figures(beats)


def _values(records: Any, topic: str) -> list[str]:
    found = [r.said.decode() for r in records if r.topic == topic]
    return [value for value in found if not value.startswith(BEAT)]


def _batches(session: Session, name: str) -> list[Batch]:
    found = []
    for row in session.ledger.loads(NAMESPACE, name):
        batch = batch_of(row.load)
        assert batch is not None, row
        decided = [a for a in session.ledger.attempts(row.load) if a.verdict is Verdict.COMMIT]
        found.append(Batch(batch[1], row.state.value, sum(a.records or 0 for a in decided), len(decided)))
    return sorted(found, key=lambda one: one.number)
