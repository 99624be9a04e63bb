"""The campaign's share that goes through Airflow and Spark for real: an Airflow with its scheduler, real
task processes, supervisors, JVMs and Python workers to strike, and what users click.

The scenario is of the same kind as the others', with what a real run can have of it; the judges are the same.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.naming import name_prefix
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import HOST
from airflow_kafka_eos.sandbox.spark import quick_settings
from tests.airflow.conftest import EAGER
from tests.airflow.rest import TASKS, Run, wait_for, wait_for_dag
from tests.connect.server import Server
from tests.faults.checkers import TORN_S, judge, windows
from tests.faults.environment import Environment, cluster, delete_topics
from tests.faults.facts import LoadFact
from tests.faults.hands import Hands
from tests.faults.markers import wall_ahead_s
from tests.faults.observing import Observers
from tests.faults.result import Result
from tests.faults.running import SETTLE_S, TRAFFIC_PAUSE_S
from tests.faults.scenario import ENGINES, Fault, Kind, Role, Scenario
from tests.faults.timeline import Timeline
from tests.faults.traffic import Applications, their_prefix

DAGS = Path(__file__).parent / "dags"
NAMESPACE = "airflow"
_, ARROW, CONNECT = ENGINES
#: a person clears a run that failed so often
MOST_CLEARS = 6
RUN_S = 400.0
#: JVMs whose task is gone end by themselves
ORPHANS_S = 60.0
ENDED = ("success", "failed")
_server_s_turn = threading.Lock()
KEYS = 20


@dataclass(frozen=True)
class Place:
    """A running Airflow, its cluster and its ledger."""

    airflow: LocalAirflow
    kafka: LocalKafka
    ledger: Ledger
    pids: Path
    #: Spark Connect's; not started where no run is by that engine
    server: Server


@contextmanager
def place(environment: Environment, kind: tuple[str, int], engines: Collection[str]) -> Iterator[Place]:
    """One for all real runs of a campaign, which are by these engines."""
    home, pids = environment.folder / "airflow", environment.folder / "pids"
    home.mkdir()
    pids.mkdir()
    with ExitStack() as stack:
        kafka = stack.enter_context(cluster(kind))
        server = Server(environment.folder / "connect")
        connections: dict[str, dict[str, Any]] = {
            "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}},
            "spark_default": {
                "conn_type": "spark",
                "host": "local[2]",
                "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
            },
            "spark_connect": {"conn_type": "spark_connect", "host": HOST, "port": server.port},
        }
        if CONNECT in engines:
            stack.callback(server.kill)
            server.start()
        settings = quick_settings(home / "spark") | EAGER | {"FAULTS_PIDS": str(pids)}
        settings |= environment.postgresql.for_airflow("airflow")
        ledger = stack.enter_context(Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db", upgrade=True))
        for engine, scope in product(sorted(engines), ("task", "load")):
            # a new one would be refused where others, with another ledger, have committed loads of the same name
            before = LoadIdentity(NAMESPACE, f"{engine}_{scope}", "loaded before")
            ledger.set_committed(before, by="the campaign", reason="this ledger is in use")
        airflow = LocalAirflow(home, DAGS, connections=connections, settings=settings)
        stack.enter_context(airflow)
        for engine, scope in product(sorted(engines), ("task", "load")):
            wait_for_dag(airflow, f"{engine}_{scope}")
        yield Place(airflow, kafka, ledger, pids, server)


def play(scenario: Scenario, place: Place, environment: Environment) -> Result:
    """A run from its begin to its judgement, as ``running.play``."""
    folder = environment.folder / f"real-{scenario.seed}-{environment.number()}"
    folder.mkdir()
    result = Result(scenario, folder=str(folder), struck=[False] * len(scenario.faults))
    with result.played(), ExitStack() as stack:
        _Run(scenario, place, folder, stack).play(result)
    if not result.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return result


class _Run:
    def __init__(self, scenario: Scenario, place: Place, folder: Path, stack: ExitStack) -> None:
        self.scenario, self.place, self.folder = scenario, place, folder
        self.timeline = Timeline(str(folder), "runner")
        self.name = folder.name
        count = len(scenario.loads)
        self.topics = [f"{self.name}-{0 if scenario.shares_topic else n}" for n in range(count)]
        self.partitions = dict.fromkeys(self.topics, scenario.partitions)
        for topic in self.partitions:
            place.kafka.create_topic(topic, partitions=scenario.partitions)
        stack.callback(delete_topics, place.kafka.bootstrap_servers, list(self.partitions), self.timeline)
        self.struck = [False] * len(scenario.faults)
        self.hands = Hands()
        #: by load, monotonic seconds: when its run was seen to have succeeded
        self.told_at: dict[int, float] = {}
        self.gave_up_s: dict[int, float] = {}
        self.over = threading.Event()

    @property
    def dag(self) -> str:
        return f"{self.scenario.engine}_{self.scenario.scope}"

    def key(self, load: int) -> str:
        return f"{self.name}-{load}"

    def identity(self, load: int) -> LoadIdentity:
        return LoadIdentity(NAMESPACE, self.dag, self.key(load))

    def play(self, result: Result) -> None:
        kafka, ledger = self.place.kafka, self.place.ledger
        prefix = name_prefix(NAMESPACE, ledger.ledger_id, self.dag)
        others = f"{their_prefix(prefix, ledger.ledger_id, self.scenario.naming, self.key(0))}1"
        applications = Applications(
            kafka.bootstrap_servers, list(self.partitions), others, self.scenario.seed, TRAFFIC_PAUSE_S
        )
        data = [kafka.log_file(node).parent / "data" for node in kafka.node_ids]
        with Observers(kafka.bootstrap_servers, self.partitions, data) as observers:
            applications.start()
            begun = time.monotonic()
            try:
                self._let_loose()
            finally:
                result.violations += self.hands.violations
                seconds = time.monotonic() - begun
                foreign, plain = applications.stop()
                for at, text in applications.events:
                    self.timeline.log(f"application: {text}", at=at)
            result.judge_others(foreign, plain, seconds)
            loads = [self._fact(n, prefix) for n in range(len(self.scenario.loads))]
            result.read_by_java = result.through_airflow = True
            seen = observers.observe(loads, foreign, plain, SETTLE_S, java=True)
        hits = zip(self.scenario.faults, self.struck, strict=True)
        down = sum(f.seconds + 10 for f, hit in hits if hit and f.kind is Kind.BROKER_KILL)
        result.violations += judge(seen, TORN_S + down)
        result.records = sum(1 for record in seen.final if record.said.startswith(b"load|"))
        identities = [self.identity(n) for n in range(len(loads))]
        result.attempts = sum(len(ledger.attempts(i)) for i in identities)
        result.repairs = sum(len(ledger.repairs(i)) for i in identities)
        result.windows = list(windows(seen).values())
        result.struck = self.struck

    def _let_loose(self) -> None:
        loads = [self.hands.begin(partial(self._load, n)) for n in range(len(self.scenario.loads))]
        for n, fault in enumerate(self.scenario.faults):
            self.hands.begin(partial(self._fault, n, fault))
        for thread in loads:
            thread.join()
        self.over.set()
        self.hands.join()
        self.place.kafka.wait_ready()
        for number in range(len(self.scenario.loads)):  # one that was cleared behind its end runs again
            wait_for(lambda n=number: self._run(n).state() in ENDED, lambda n=number: f"end of {self._run(n).id}")  # type: ignore[misc]
        until = time.monotonic() + ORPHANS_S
        while self._jvms() and time.monotonic() < until:
            time.sleep(0.2)
        assert not self._jvms(), f"applications that do not end: {self._jvms()}"

    def _run(self, load: int) -> Run:
        return Run(self.place.airflow, self.dag, f"{self.name}-run-{load}")

    def _load(self, number: int) -> None:
        run, plan = self._run(number), self.scenario.loads[number]
        conf = {
            "topic": self.topics[number],
            "key": self.key(number),
            "records": plan.records,
            "key_count": KEYS,
            "tasks": self.scenario.tasks[0],
        }
        body = {"dag_run_id": run.id, "logical_date": None, "conf": conf}
        self.place.airflow.post(f"/dags/{self.dag}/dagRuns", body)
        self.timeline.log("run starts", load=number)
        begun = time.monotonic()
        for cleared in range(MOST_CLEARS + 1):
            if cleared:
                self.timeline.log("is cleared", load=number)
                run.clear(*TASKS)
                time.sleep(1)
            while (state := run.state()) not in ENDED:
                if (after_s := time.monotonic() - begun) > RUN_S:
                    self.timeline.log("did not end", load=number, tasks=str(run.tasks()))
                    self.gave_up_s[number] = after_s
                    return
                time.sleep(0.5)
            self.timeline.log("run ended", load=number, state=state, tasks=str(run.tasks()))
            if state == "success":
                self.told_at[number] = time.monotonic()
                return

    def _fault(self, number: int, fault: Fault) -> None:
        try:
            at = self._moment(fault)
            if at is None or self.over.wait(max(0.0, at - time.monotonic())):
                return
            self.struck[number] = _STRIKES[fault.kind](self, fault)
            self.timeline.log(f"fault {number}", kind=fault.kind.value, target=fault.target, struck=self.struck[number])
        except Exception as e:  # the task was faster
            self.timeline.log("a fault failed", number=number, error=f"{type(e).__name__}: {e}"[:500])

    def _moment(self, fault: Fault) -> float | None:
        """When it is due, monotonic seconds: so long after its target was first seen."""
        while not self.over.is_set():
            if self._process(fault) is not None:
                return time.monotonic() + fault.moment.delay_ms / 1000
            time.sleep(0.02)
        return None

    def _process(self, fault: Fault) -> psutil.Process | None:
        """The process that a fault is about."""
        role = fault.moment.event
        if role in (Role.DRIVER.value, Role.TASK.value):
            if self.scenario.engine == ARROW:  # the task's own process is all there is
                role = Role.PREPARE.value
            else:
                jvm = self._driver(fault)
                return jvm if jvm is None or role == Role.DRIVER.value else self._worker(jvm)
        with contextlib.suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return psutil.Process(int((self.place.pids / self._run(fault.load).id / role).read_text()))
        return None

    def _driver(self, fault: Fault) -> psutil.Process | None:
        """The JVM that the load is written by; by Connect it is everybody's, and begins to count with prepare."""
        if self.scenario.engine != CONNECT:
            return next(iter(self._jvms(self.key(fault.load))), None)
        serving = self.place.server.process
        if serving is None or not (self.place.pids / self._run(fault.load).id / Role.PREPARE.value).exists():
            return None
        return next((p for p in (psutil.Process(serving.pid), *_below(serving.pid)) if p.name() == "java"), None)

    def _worker(self, jvm: psutil.Process) -> psutil.Process | None:
        """A process of its Python, if there is one yet."""
        daemons = [p for p in _below(jvm.pid) if _has(p, "pyspark.daemon", "daemon.py")]
        # the daemon itself has no other one above it; those that it has forked are the tasks'
        found = {p.pid for p in daemons}
        workers = [p for p in daemons if p.ppid() in found]
        return random.Random(self.scenario.seed).choice(workers) if workers else None

    def _jvms(self, key: str = "") -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if any("SparkSubmit" in part for part in line) and any((key or f'"{self.name}-') in p for p in line):
                    found.append(process)
        return found

    def _fact(self, number: int, prefix: str) -> LoadFact:
        identity, ledger = self.identity(number), self.place.ledger
        row = ledger.load(identity)
        decided = [a for a in ledger.attempts(identity) if a.verdict is Verdict.COMMIT]
        # noted within the database transaction that makes it so, and with no clock that jumps
        moments = [datetime.fromisoformat(a.decided_at).timestamp() for a in decided if a.decided_at is not None]
        return LoadFact(
            key=self.key(number),
            topics=(self.topics[number],),
            scope=self.scenario.scope,
            records=self.scenario.loads[number].records,
            reported=None if row is None else row.state.value,
            decided=decided[0].number if decided else None,
            acked=number in self.told_at,
            expect="committed",
            prefix=f"{prefix}{self.key(number)}.",
            deciding_at=moments[0] - wall_ahead_s() if moments else None,
            told_at=self.told_at.get(number),
            gave_up_s=self.gave_up_s.get(number, 0.0),
        )

    # -- strikes: whether something was struck ---------------------------------------------------------------------

    def kill(self, fault: Fault) -> bool:
        process = self._process(fault)
        if process is None:
            return False
        if fault.target == "supervisor" and (parent := process.parent()) is not None:
            process = parent
            assert "LocalExecutor" in " ".join(process.cmdline()), process
        if fault.moment.event == Role.DRIVER.value and self.scenario.engine == CONNECT:
            with _server_s_turn:
                self.place.server.kill()
                self.place.server.start()
            return True
        victims = [process]
        if fault.moment.event == Role.DRIVER.value and self.scenario.engine != ARROW:
            victims += process.children(recursive=True)
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        return True

    def pause(self, fault: Fault) -> bool:
        process = self._process(fault)
        if process is None:
            return False
        process.suspend()
        time.sleep(fault.seconds)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
        return True

    def kill_broker(self, fault: Fault) -> bool:
        self.place.kafka.kill(None)
        time.sleep(fault.seconds)
        self.place.kafka.restart(None)
        return True

    def clear(self, fault: Fault) -> bool:
        with contextlib.suppress(SandboxError):
            self._run(fault.load).clear(fault.target)
            return True
        return False


def _below(pid: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(pid).children(recursive=True)
    return found


def _has(process: psutil.Process, *words: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word in " ".join(process.cmdline()) for word in words)
    return False


_STRIKES: dict[Kind, Callable[[_Run, Fault], bool]] = {
    Kind.SIGKILL: _Run.kill,
    Kind.PAUSE: _Run.pause,
    Kind.BROKER_KILL: _Run.kill_broker,
    Kind.CLEAR: _Run.clear,
}
