"""One run: set its parts up, let everybody loose, and judge what became of it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_kafka_eos.errors import KafkaEosError, RecordsGoneError
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadState, TransactionNaming, Verdict
from airflow_kafka_eos.naming import name_prefix, prefix
from airflow_kafka_eos.protocol.repair.restored import reinstate
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from tests.faults import accounts
from tests.faults.checkers import TORN_S, judge, windows
from tests.faults.conducting import Conductor
from tests.faults.environment import Database, Environment, delete_topics, short_folder
from tests.faults.facts import ForeignFact, LoadFact, PlainFact
from tests.faults.generating import LARGE
from tests.faults.hands import Hands
from tests.faults.injecting import Injector, Targets, first_begin, healthy
from tests.faults.observing import Observers, at_rest
from tests.faults.outages import TOPIC_CONFIGS
from tests.faults.plan import LOAD_NAME, Ended, Order, Plan
from tests.faults.proxy import FaultProxy
from tests.faults.result import Result
from tests.faults.scenario import (
    BROKER_KINDS,
    LEDGER_SIDE,
    NET_KINDS,
    WRITER_SIDE,
    Fault,
    Keeps,
    Kind,
    Role,
    Scenario,
    Wish,
)
from tests.faults.striking import struck, take
from tests.faults.timeline import Timeline, events
from tests.faults.traffic import KEYS, Applications, HeldTransaction, their_prefix, transactional
from tests.faults.zygote import ask, living
from tests.transaction_version import finalize

#: a transaction of ours may be open so long after recovery
SETTLE_S = 60.0
#: and so long behind a cleanup that was to leave nothing: end markers are written behind EndTxn's answer
CLEAN_S = 10.0
#: longest pause of other applications: they are there all the while, and leave the machine to us
TRAFFIC_PAUSE_S = 0.2
#: of so many runs one is read by Java's consumer too, as the large ones are: it takes seconds
JAVA_READS = 20
#: a zombie ends by its own limits
ZOMBIES_S = 200.0
#: the maintenance DAG comes again until it has nothing to complain about; so often, and no longer
MOST_SWEEPS = 5
#: in one of so many runs another application holds a transaction open until the first load is to be seen
HELD_RUNS = 5
#: and so long behind that moment
HELD_S = 1.0
#: other applications' keys: where the newest of a key is kept, none of theirs comes twice
MANY_KEYS = 2**40
EXPECT = {Wish.LOAD: "committed", Wish.REFUSE: "absent", Wish.ABANDON: "either"}


def play(scenario: Scenario, kafka: LocalKafka, environment: Environment) -> Result:
    """A run from its begin to its judgement. The folder stays where something is wrong."""
    number = environment.number()
    folder = environment.folder / f"{scenario.seed}-{number}"
    folder.mkdir(parents=True)
    result = Result(scenario, folder=str(folder))
    with result.played(), ExitStack() as stack:
        _Run(scenario, kafka, environment, f"f{scenario.seed}r{number}", folder, stack).play(result)
    result.struck = [struck(str(folder), n) for n in range(len(scenario.faults))]
    if not result.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return result


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        kafka: LocalKafka,
        environment: Environment,
        name: str,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        self.scenario, self.kafka, self.environment, self.stack = scenario, kafka, environment, stack
        self.timeline = Timeline(str(folder), "runner")
        count = len(scenario.loads)
        self.topics = tuple(
            tuple(f"{name}-{0 if scenario.shares_topic else n}-{t}" for t in range(scenario.loads[n].topics))
            for n in range(count)
        )
        self.partitions = {topic: scenario.partitions for topics in self.topics for topic in topics}
        if any(fault.kind is Kind.FEATURE_UPGRADED for fault in scenario.faults):
            finalize(kafka.bootstrap_servers, 1)  # a run before may have upgraded it
        for topic in self.partitions:
            kafka.create_topic(topic, partitions=scenario.partitions, config=TOPIC_CONFIGS[scenario.keeps])
        self.their_topics = list(self.partitions)
        if scenario.recreates_topics:
            self.their_topics = [f"{name}-others"]
            kafka.create_topic(self.their_topics[0], partitions=scenario.partitions)
            self.partitions[self.their_topics[0]] = scenario.partitions
        stack.callback(delete_topics, kafka.bootstrap_servers, list(self.partitions), self.timeline)
        self.database = environment.ledger(scenario.ledger, name, folder)
        stack.callback(self.database.drop)
        proxy, url = self._database_proxy(self.database)
        proxies, redirects = self._broker_proxies()
        self.plan = Plan(
            scenario.to_json(),
            str(folder),
            kafka.bootstrap_servers,
            url,
            name,
            self.topics,
            time.time_ns() // 10**6,
            redirects,
        )
        self.plan.write()
        self.targets = Targets(self.plan, kafka, self._user, proxies, proxy)
        self._lock = threading.Lock()
        self._acked: set[int] = set()
        #: loads that a restored ledger had forgotten, and has again
        self._taken_back: set[int] = set()
        self._hands = Hands()
        self._over = threading.Event()
        #: by load key, the transactions that maintenance ended
        self._ended: dict[str, list[str]] = {}

    def play(self, result: Result) -> None:
        settings = (self.kafka.bootstrap_servers, self.their_topics)
        with Ledger.open(self.database.url) as ledger:
            ours = name_prefix(self.plan.namespace, ledger.ledger_id, LOAD_NAME)
            theirs = their_prefix(ours, ledger.ledger_id, self.scenario.naming, self.plan.key(0))
        applications = Applications(*settings, f"{theirs}1", self.scenario.seed, TRAFFIC_PAUSE_S, self._their_keys)
        data = [self.kafka.log_file(node).parent / "data" for node in self.kafka.node_ids]
        with Observers(self.kafka.bootstrap_servers, self.partitions, data) as observers:
            held = self._hold(f"{theirs}2")
            applications.start()
            begun = time.monotonic()
            try:
                self._let_loose()
                healthy(self.kafka)
                self._settle()
            finally:
                result.violations += self._hands.violations
                seconds = time.monotonic() - begun
                foreign, plain = applications.stop()
                told_by = [*applications.events, *(held.events if held else ())]
                for at, text in sorted(told_by):
                    self.timeline.log(f"application: {text}", at=at)
            result.judge_others(foreign, plain, seconds)
            observers.follow(self.targets.changed)
            observers.forget(self.targets.recreated)
            facts = list(foreign)
            if held is not None:  # a broker that dies may keep its client from ending it, too
                was_ended = held.fact.was_ended and self._is_undisturbed()
                facts.append(replace(held.fact, was_ended=was_ended))
            self._judge(result, observers, ours, facts, plain)

    def _hold(self, transactional_id: str) -> HeldTransaction | None:
        """Readers get nothing behind it, and the leaf of a run waits for readers: it goes on until the first of these
        has waited a while."""
        if self.scenario.seed % HELD_RUNS:
            return None
        held = HeldTransaction(
            self.kafka.bootstrap_servers, self.their_topics[0], transactional_id, keys=self._their_keys
        )

        def hold() -> None:
            while not self._over.wait(0.1):
                loads = range(len(self.scenario.loads))
                if any(first_begin(self.plan.folder, Role.LOADED.value, n) is not None for n in loads):
                    self._over.wait(HELD_S)
                    break
            self.timeline.log("a held transaction ends", fate=held.commit().fate.value)

        self._hands.begin(hold)
        return held

    @property
    def _their_keys(self) -> int:
        return MANY_KEYS if self.scenario.keeps is Keeps.NEWEST else KEYS

    def _let_loose(self) -> None:
        injector = Injector(self.targets)
        injector.start()
        try:
            for behind in (False, True):
                some = [n for n, load in enumerate(self.scenario.loads) if load.behind is behind]
                for thread in [self._hands.begin(partial(self._load, n)) for n in some]:
                    thread.join()
        finally:
            injector.stop()
            self._over.set()
            self._hands.join()

    def _load(self, number: int) -> None:
        conductor = Conductor.by_zygote(self.plan, number, "run", self.environment.zygote)
        self._conduct(conductor)
        for n, fault in enumerate(self.scenario.faults):
            if fault.kind is Kind.CLEAR and fault.load == number:
                take(self.plan.folder, n, fault, self.timeline)
                self._conduct(conductor)

    def _conduct(self, conductor: Conductor) -> None:
        if conductor.play():
            self._ack(conductor.load)
        elif self.scenario.shares_topic and len(self.scenario.loads) > 1:
            # its cleanup may have died too: readers of the others' records wait until the maintenance DAG has come
            details = {"of_one": True}
            self._sweep(Order(Role.MAINTENANCE.value, conductor.load, "maintenance", self.plan.folder, details))

    def _sweep(self, order: Order) -> Ended:
        ended = ask(self.environment.zygote, order)
        with self._lock:
            for key, ids in (ended.answer or {}).get("swept", {}).items():
                self._ended.setdefault(key, []).extend(ids)
        return ended

    def _user(self, fault: Fault) -> None:
        if fault.kind is Kind.SECOND_RUN:
            other = Conductor.by_zygote(self.plan, fault.load, "other", self.environment.zygote)
            self._hands.begin(lambda: self._conduct(other))
        else:
            owner = Conductor.by_zygote(self.plan, fault.load, "run", self.environment.zygote).owner
            order = Order(Role.CLEANUP.value, fault.load, owner, self.plan.folder)

            def cleanup() -> None:
                ended = ask(self.environment.zygote, order)
                self.timeline.log("a cleanup beside ends", killed_by=ended.killed_by, error=ended.error[:500])

            self._hands.begin(cleanup)

    def _ack(self, load: int) -> None:
        with self._lock:
            self._acked.add(load)

    def _settle(self) -> None:
        """Zombies come to their end, and the maintenance DAG sweeps what they left."""
        give_up = time.monotonic() + ZOMBIES_S
        while living(self.plan.folder) and time.monotonic() < give_up:
            time.sleep(0.02)
        left = living(self.plan.folder)
        assert not left, f"gave up by the clock, after {ZOMBIES_S:.0f} s: processes that do not end: {left}"
        if self._has_lost_something:
            self._end_by_hand()
            return
        self._note_what_is_open()
        for _ in range(MOST_SWEEPS):
            ended = self._sweep(Order(Role.MAINTENANCE.value, 0, "maintenance", self.plan.folder))
            if ended.is_well and not ended.answer["errors"]:
                return
            self._clear_commits()
        self._hands.failed(f"maintenance has failed {MOST_SWEEPS} times, the last time so: {ended}")

    @property
    def _has_lost_something(self) -> bool:
        return bool(self.targets.recreated) or self.targets.restored.is_set()

    def _end_by_hand(self) -> None:
        """A ledger that was put back, or a load whose topic is another one, stops in doubt: nothing of ours ends what
        is open, so a person does, by a client that takes over the id. Before, what brokers show as decided is taken
        back, and must be there once, and whole."""
        if self.targets.restored.is_set():
            self._take_back()
        ended = self._sweep(Order(Role.MAINTENANCE.value, 0, "maintenance", self.plan.folder))
        self.timeline.log("maintenance, behind a loss", error=ended.error[:500], answer=str(ended.answer)[:500])
        with Ledger.open(self.database.url) as ledger:
            ours = name_prefix(self.plan.namespace, ledger.ledger_id, LOAD_NAME)
        left = at_rest(self.kafka.bootstrap_servers, self.partitions, CLEAN_S, lambda i: i.startswith(ours))
        for one in left.open:
            self.timeline.log("ended by hand", transactional_id=one.transactional_id)
            transactional(self.kafka.bootstrap_servers, one.transactional_id)

    def _take_back(self) -> None:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": self.kafka.bootstrap_servers})
        store = ManifestStore(self.plan.manifests)
        with connect(settings, self.database.url, self.plan.namespace) as session:
            for number in range(len(self.scenario.loads)):
                load = self.plan.identity(number)
                state = session.ledger.state(load)
                if state is not None and state.is_decided:
                    continue
                try:
                    row = reinstate(
                        session, load, store.read, by="a person", writers_left=store.writers_left, deadline_s=SETTLE_S
                    )
                except KafkaEosError as e:
                    self.timeline.log("not taken back", load=number, error=str(e)[:500])
                else:
                    self.timeline.log("taken back", load=number, state=row.state.value)
                    self._taken_back.add(number)

    def _note_what_is_open(self) -> None:
        """Of loads that are to be clean, before maintenance comes: what it would end, and what it would not see.

        A pooled id does not tell its load: there all loads must be clean for one to be judged by it.
        """
        happened = events(self.plan.folder)
        with Ledger.open(self.database.url) as ledger:
            numbers = range(len(self.scenario.loads))
            clean = {n for n in numbers if self._was_to_be_clean(ledger.attempts(self.plan.identity(n)), n, happened)}
            pooled = self.scenario.naming == TransactionNaming.POOLING.value
            if not clean or (pooled and len(clean) < len(self.scenario.loads)):
                return
            prefixes = {
                self.plan.key(n): name_prefix(self.plan.namespace, ledger.ledger_id, LOAD_NAME)
                if pooled
                else prefix(self.plan.identity(n), ledger.ledger_id)
                for n in clean
            }
        brokers = at_rest(
            self.kafka.bootstrap_servers, self.partitions, CLEAN_S, lambda i: i.startswith(tuple(prefixes.values()))
        )
        for one in brokers.open:
            owner = next(key for key, begin in prefixes.items() if one.transactional_id.startswith(begin))
            self._ended.setdefault(owner, []).append(one.transactional_id)

    def _was_to_be_clean(
        self, attempts: Sequence[AttemptRow], load: int, happened: Sequence[accounts.Event]
    ) -> bool:
        newest = max((a.number for a in attempts), default=0)
        return self._is_undisturbed() and accounts.was_to_clean_all(happened, load, newest)

    def _clear_commits(self) -> None:
        """What is lost behind its decision commit repairs, and maintenance only asks for it: a person does it; and
        clears prepare, too, where commit says that the records are gone from the log."""
        with Ledger.open(self.database.url) as ledger:
            for n in range(len(self.scenario.loads)):
                row, attempts = ledger.load(self.plan.identity(n)), ledger.attempts(self.plan.identity(n))
                decided = any(a.verdict is Verdict.COMMIT for a in attempts)
                if decided and row is not None and row.state is not LoadState.COMMITTED:
                    commit, prepare = (
                        Order(role.value, n, "a person", self.plan.folder) for role in (Role.COMMIT, Role.PREPARE)
                    )
                    if RecordsGoneError.__name__ in ask(self.environment.zygote, commit).error:
                        ask(self.environment.zygote, prepare)
                        ask(self.environment.zygote, commit)

    def _judge(
        self,
        result: Result,
        observers: Observers,
        ours: str,
        foreign: Sequence[ForeignFact],
        plain: Sequence[PlainFact],
    ) -> None:
        happened = events(self.plan.folder)
        with Ledger.open(self.database.url) as ledger:
            loads = [self._fact(ledger, n, ours, happened) for n in range(len(self.scenario.loads))]
            identities = [self.plan.identity(n) for n in range(len(loads))]
            result.attempts = sum(len(ledger.attempts(i)) for i in identities)
            result.repairs = sum(len(ledger.repairs(i)) for i in identities)
        result.read_by_java = self.scenario.seed >= LARGE or self.scenario.seed % JAVA_READS == 0
        result.ended_by_maintenance = sum(map(len, self._ended.values()))
        wrong = list(accounts.unexpected(happened))
        seen = observers.observe(loads, foreign, plain, SETTLE_S, java=result.read_by_java, errors=wrong)
        result.violations += judge(seen, self._torn_s())
        result.records = sum(1 for record in seen.final if record.said.startswith(b"load|"))
        result.windows = list(windows(seen).values())
        self.timeline.log("is judged", violations=len(result.violations), windows=result.windows)

    def _fact(self, ledger: Ledger, number: int, ours: str, happened: Sequence[accounts.Event]) -> LoadFact:
        identity, load, key = self.plan.identity(number), self.scenario.loads[number], self.plan.key(number)
        row, attempts = ledger.load(identity), ledger.attempts(identity)
        decided = [a.number for a in attempts if a.verdict is Verdict.COMMIT]
        was_to_be_clean = self._was_to_be_clean(attempts, number, happened)
        return LoadFact(
            key=key,
            topics=self.topics[number],
            scope=self.scenario.scope,
            records=load.records,
            reported=None if row is None else row.state.value,
            decided=decided[0] if decided else None,
            acked=number in self._acked,
            expect=self._expected(number),
            prefix=ours,
            deciding_at=accounts.deciding_at(happened, key, decided[0]) if decided else None,
            told_at=accounts.told_at(happened, number),
            gave_up_s=accounts.gave_up_s(happened, number),
            left_by_cleanup=tuple(self._ended.get(key, ())) if was_to_be_clean else (),
            compacted=self.scenario.keeps is Keeps.NEWEST,
            keys=load.keys,
            lost_at=self._lost_at(number),
        )

    def _expected(self, number: int) -> str:
        fate = self.scenario.loads[number].fate
        if number in self._taken_back and fate is Wish.REFUSE:
            return EXPECT[fate]
        return "either" if self._has_lost_something else EXPECT[fate]

    def _lost_at(self, number: int) -> float | None:
        if number in self._taken_back:
            return None
        if self.targets.restored.is_set():
            return 0.0
        moments = [at for topic, at in self.targets.recreated.items() if topic in self.topics[number]]
        return min(moments, default=None)

    def _is_undisturbed(self) -> bool:
        """Whether brokers and the way to them were well: else what was sent before a cleanup may arrive behind it."""
        disturbing = (*BROKER_KINDS, *NET_KINDS)
        faults = enumerate(self.scenario.faults)
        return not any(f.kind in disturbing and struck(self.plan.folder, n) for n, f in faults)

    def _torn_s(self) -> float:
        """Markers are looked for in the log itself: only a leader that was down can have kept one away."""
        faults = enumerate(self.scenario.faults)
        down = (f.seconds + 10 for n, f in faults if f.kind in BROKER_KINDS and struck(self.plan.folder, n))
        return TORN_S + sum(down)

    def _database_proxy(self, database: Database) -> tuple[FaultProxy | None, str]:
        if not any(f.kind in (Kind.LEDGER_DOWN, Kind.LEDGER_HANGS) for f in self.scenario.faults):
            return None, database.url
        assert database.server is not None
        folder = self.stack.enter_context(short_folder())
        proxy = FaultProxy(database.socket(database.server.directory), database.socket(folder))
        self.stack.callback(proxy.close)
        return proxy, database.url_through(folder)

    def _broker_proxies(self) -> tuple[list[FaultProxy], dict[str, Any]]:
        sides = {f.target for f in self.scenario.faults if f.kind in NET_KINDS}
        if not sides:
            return [], {}
        assert sides <= {LEDGER_SIDE, WRITER_SIDE}
        proxies, addresses = [], {}
        for node in self.kafka.node_ids:
            host, _, port = self.kafka.address(node).rpartition(":")
            proxy = FaultProxy((host, int(port)))
            self.stack.callback(proxy.close)
            proxies.append(proxy)
            addresses[self.kafka.address(node)] = proxy.address
        return proxies, {side: addresses for side in sides}
