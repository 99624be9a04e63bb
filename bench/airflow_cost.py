"""What exactly-once costs a small load in Airflow, beside one bare SparkSubmitOperator that writes at least once.

``make bench-airflow`` writes ``bench/AIRFLOW.md``: the time of one load, where it goes, and the time of a backfill, in
a real Airflow, for each way to prepare a load: by spark-submit, by a Spark Connect server that is warm, and by
``engine="arrow"``. Its environment has what people install, not what our tests need: every task imports the Spark
operator, and that imports OpenLineage's client wherever it is installed (0.1 s of a core each time). Knobs: ``LOADS``
(7), ``DAYS`` (30; 0 for no backfill), ``ROUNDS`` (3: so many backfills of each kind, in turn, which have the days
between them), ``AT_A_TIME`` (4), ``RECORDS`` (1000), ``OUT`` (the page).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import HOST, sigterm_as_ctrl_c
from bench.report import table
from tests.connect.server import Server, server
from tests.postgresql import postgresql_server

BASE = "at_least_once"
#: For people.
NAMES = {
    BASE: "at least once",
    "exactly_once": "exactly once",
    "exactly_once_arrow": 'exactly once, engine="arrow"',
    "exactly_once_connect": "exactly once, Spark Connect",
}
KINDS = tuple(NAMES)
PARTITIONS = 2
FIRST = date(2025, 3, 1)
PATIENCE_SECONDS = 3600.0
#: How many times as long as at least once a load and a backfill may take.
LOAD_TIMES = {"exactly_once": 1.15, "exactly_once_arrow": 0.5, "exactly_once_connect": 0.6}
BACKFILL_TIMES = {"exactly_once": 1.15, "exactly_once_arrow": 0.4, "exactly_once_connect": 0.6}
PAGE = Path(__file__).with_name("AIRFLOW.md")


@dataclass(frozen=True)
class Step:
    """One task of a run, in seconds.

    :param waiting: from the end of the task before it (of the run's queueing for the first) until it began: Airflow's
        scheduler, executor and the start of the task's process.
    :param running: until it ended; for one that was deferred, with the triggerer's part.
    """

    task: str
    waiting: float
    running: float


@dataclass
class Figures:
    """All that was measured, in seconds; lists by kind."""

    loads: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    backfills: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    days: int = 0


def seconds_of(run: Mapping[str, Any]) -> float:
    """From queueing a run to its end, by Airflow's own clock."""
    return (_time(run["end_date"]) - _time(run["queued_at"])).total_seconds()


def steps_of(run: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> list[Step]:
    """Where a run's time went: its tasks in the order of their ends. Pure."""
    before, found = _time(run["queued_at"]), []
    for task in sorted(tasks, key=lambda t: str(t["start_date"])):
        began, ended = _time(task["start_date"]), _time(task["end_date"])
        # cleanup and loaded run side by side: both wait for commit
        waited_for = max((e for e in (_time(t["end_date"]) for t in tasks) if e <= began), default=before)
        name = task["task_id"].removeprefix("load.")
        found.append(Step(name, (began - waited_for).total_seconds(), (ended - began).total_seconds()))
    return found


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


class Cost:
    """The measurement, on a running Airflow."""

    def __init__(self, airflow: LocalAirflow, kafka: LocalKafka, records: int) -> None:
        self.airflow = airflow
        self.kafka = kafka
        self.records = records
        self.figures = Figures()

    def prepare(self) -> None:
        """Topics, and DAGs that Airflow has seen."""
        dags = [f"{kind}_{what}" for kind in KINDS for what in ("single", "days")]
        for dag in dags:
            self.kafka.create_topic(dag, partitions=PARTITIONS)
        self._wait(lambda: {d["dag_id"] for d in self.airflow.get("/dags")["dags"]} >= set(dags), "the DAGs")

    def loads(self, count: int) -> None:
        """One at a time, the kinds in turn; the first of each is not counted."""
        for number in range(count + 1):
            for kind in KINDS:
                run, tasks = self._run(f"{kind}_single", f"load-{number}")
                say(f"{kind} {number}: {seconds_of(run):.1f} s" + ("" if number else ", not counted"))
                if number:
                    self.figures.loads[kind].append(seconds_of(run))
                    self.figures.steps[kind] += steps_of(run, tasks)
        for kind in KINDS:
            self._check(f"{kind}_single", [f"load-{number}" for number in range(count + 1)])

    def backfills(self, days: int, rounds: int, at_a_time: int) -> None:
        """The kinds in turn, a part of the days each time: a machine that is slow for a while is so for all of them."""
        rounds = max(1, min(rounds, days))
        for number in range(rounds):
            begin, end = days * number // rounds, days * (number + 1) // rounds
            for kind in KINDS:
                self._backfill(kind, begin, end, at_a_time)
        self.figures.days = days

    def _backfill(self, kind: str, begin: int, end: int, at_a_time: int) -> None:
        """From the first run's queueing to the last one's end."""
        dag = f"{kind}_days"
        body = {
            "dag_id": dag,
            "from_date": f"{FIRST + timedelta(days=begin)}T00:00:00Z",
            "to_date": f"{FIRST + timedelta(days=end - 1)}T00:00:00Z",
            "max_active_runs": at_a_time,
        }
        self._wait(lambda: self._no_backfill(dag), f"the end of the last backfill of {dag}")  # Airflow allows one
        began = time.time()
        self.airflow.backfill(body)
        # once a second: each look makes the api-server list all runs
        self._wait(lambda: self._succeeded(dag) == end, f"{end} runs of {dag}", pause_s=1)
        runs = self.airflow.get(f"/dags/{dag}/dagRuns", limit=1000)["dag_runs"]
        took = max(_time(r["end_date"]).timestamp() for r in runs) - began
        self.figures.backfills[kind].append(took)
        say(f"backfill of {end - begin} days, {kind}: {took:.0f} s")
        self._check(dag, [r["dag_run_id"] for r in runs])

    def _run(self, dag: str, run_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        self.airflow.post(f"/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": None})
        path = f"/dags/{dag}/dagRuns/{run_id}"
        self._wait(lambda: self._state(path) == "success", f"{dag} {run_id}")
        return self.airflow.get(path), self.airflow.get(f"{path}/taskInstances")["task_instances"]

    def _state(self, path: str) -> str:
        state = str(self.airflow.get(path)["state"])
        if state == "failed":
            raise SandboxError(f"{path} failed", remedy=f"See the logs in {self.airflow.home}/logs")
        return state

    def _no_backfill(self, dag: str) -> bool:
        return all(b["completed_at"] for b in self.airflow.get("/backfills", dag_id=dag)["backfills"])

    def _succeeded(self, dag: str) -> int:
        states = [run["state"] for run in self.airflow.get(f"/dags/{dag}/dagRuns", limit=1000)["dag_runs"]]
        if "failed" in states:
            raise SandboxError(f"a run of {dag} failed", remedy=f"See the logs in {self.airflow.home}/logs")
        return states.count("success")

    def _check(self, topic: str, runs: Sequence[str]) -> None:
        seen, wanted = visible(self.kafka.bootstrap_servers, topic), rows_of(runs, self.records)
        if sorted(seen) != sorted(wanted):
            right = len(set(seen) & set(wanted))
            raise SandboxError(
                f"topic {topic}: {len(seen)} records, {len(set(seen))} of them different, {right} of the "
                f"{len(wanted)} that were to be written"
            )

    def _wait(self, done: Any, what: str, pause_s: float = 0.2) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not done():
            if time.monotonic() > until:
                raise SandboxError(f"{what}: not within {PATIENCE_SECONDS:g} s", remedy=str(self.airflow.home))
            time.sleep(pause_s)


def rows_of(runs: Sequence[str], records: int) -> list[tuple[bytes, bytes]]:
    """Keys and values that runs write, of whatever kind: those of ``bench/dags/jobs``. Pure."""
    return [(f"{n}".encode(), f"{run} {n}".encode()) for run in runs for n in range(records)]


def visible(bootstrap_servers: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Keys and values that a read_committed reader sees of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        found: list[tuple[bytes, bytes]] = []
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(30)
            if message is None:
                raise SandboxError(f"no end of topic {topic} within 30 s")
            error = message.error()
            if error is None:
                found.append((message.key() or b"", message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise SandboxError(f"topic {topic}: {error}")
        return found
    finally:
        consumer.close()


def providers() -> list[str]:
    """Airflow and its providers here, for the page: what is installed is a part of what a task costs."""
    found = {d.name: d.version for d in distributions() if d.name.startswith("apache-airflow")}
    return [f"{name} {found[name]}" for name in sorted(found)]


def page(
    figures: Figures, *, records: int, at_a_time: int, kafka_version: str, installed: Sequence[str] = ()
) -> str:
    """The report. Pure."""
    singles, cores = figures.loads, os.cpu_count()
    medians = {kind: statistics.median(of) for kind, of in singles.items()}
    load_rows = [
        [NAMES[kind], *(f"{v:.1f}" for v in (medians[kind], min(of), max(of))), f"{medians[kind] / medians[BASE]:.2f}"]
        for kind, of in singles.items()
    ]
    lines = [
        "# What exactly-once costs in Airflow", "",
        "Made by `make bench-airflow`: the parts of `airflow standalone` on PostgreSQL with LocalExecutor, Spark",
        f"local[2] with the settings that it comes with, one broker of Kafka {kafka_version}, all on {cores} cores;",
        f"loads of {records:,} records. Beside it the same rows by one bare SparkSubmitOperator, whose tasks write",
        "with an idempotent producer: at least once. The Spark Connect server, local[2] too, is started once before",
        "the first load, and stays warm: its start is in no figure.",
        "",
        f"Installed: {', '.join(installed)}.",
        "",
        "## One load", "",
        f"Seconds from queueing the run to its end; {len(singles[BASE])} of each, in turn. *Times*: the median",
        "by that of at least once.",
        "",
        *table(["", "median s", "fastest", "slowest", "times"], load_rows),
        "",
        *_limits(medians, LOAD_TIMES),
        "",
        "## Where it goes", "",
        "Medians, in seconds. *Waiting*: from the end of the task before it until it began: Airflow's scheduler, its",
        "executor, and the start of a process. `cleanup` and `loaded` run side by side.", "",
        *table(["task", "waiting", "running"], [row for kind, of in figures.steps.items() for row in _steps(kind, of)]),
        "",
    ]  # fmt: skip
    if figures.backfills:
        took, days = {kind: sum(of) for kind, of in figures.backfills.items()}, figures.days
        rows = [[NAMES[k], f"{s:.0f}", f"{s / days:.1f}", f"{s / took[BASE]:.2f}"] for k, s in took.items()]
        lines += [
            "## A backfill", "",
            f"{days} days, {at_a_time} at a time; seconds from the click to the last run's end. In",
            f"{len(figures.backfills[BASE])} parts, the kinds in turn.", "",
            *table(["", "s", "s per day", "times"], rows), "",
            *_limits(took, BACKFILL_TIMES), "",
        ]  # fmt: skip
    return "\n".join(lines)


def _limits(seconds: Mapping[str, float], allowed: Mapping[str, float]) -> list[str]:
    lines = []
    for kind, limit in allowed.items():
        if kind in seconds:
            times = seconds[kind] / seconds[BASE]
            how = "within" if times <= limit else "MORE than"
            verdict = f"{how} the {limit:g} that were set"
            lines.append(f"- {NAMES[kind]}: {times:.2f} times as long as at least once ({verdict})")
    return lines


def _steps(kind: str, steps: Sequence[Step]) -> list[list[str]]:
    rows = []
    for task in dict.fromkeys(s.task for s in steps):
        mine = [s for s in steps if s.task == task]
        figures = (statistics.median(s.waiting for s in mine), statistics.median(s.running for s in mine))
        rows.append([f"{NAMES[kind]}: {task}", *(f"{f:.1f}" for f in figures)])
    return rows


def spark_as_it_comes(folder: Path) -> dict[str, str]:
    """A ``SPARK_CONF_DIR`` with addresses and a folder of its own, nothing else; the environment that makes it used.

    The tests' Spark compiles little and has no UI: people's has what Spark comes with.
    """
    folder.mkdir(parents=True)
    own = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in own.items()))
    return {"SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def connect_server(folder: Path) -> Iterator[Server]:
    """One as people have it: with what Spark comes with, and the settings of docs/spark-connect.md. Ended behind."""
    as_it_comes = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",  # its usual one is for the others' Spark, which would look for another one each time
        "spark.sql.shuffle.partitions": "200",
    }
    environment = spark_as_it_comes(folder / "settings")
    with server(folder / "server", master="local[2]", conf=as_it_comes, environment=environment) as running:
        yield running


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    knobs = {k: int(os.environ.get(k, default)) for k, default in
             {"LOADS": "7", "DAYS": "30", "ROUNDS": "3", "AT_A_TIME": "4", "RECORDS": "1000"}.items()}  # fmt: skip
    with (
        sigterm_as_ctrl_c(),
        tempfile.TemporaryDirectory(prefix="bench-airflow-") as folder,
        LocalKafka(log=say) as kafka,
        postgresql_server() as postgresql,
        connect_server(Path(folder) / "connect") as connect,
    ):
        home, servers = Path(folder) / "airflow", kafka.bootstrap_servers
        settings = spark_as_it_comes(Path(folder) / "spark") | {
            "AIRFLOW__CORE__PARALLELISM": "32",  # Airflow's own default
            "BENCH_RECORDS": str(knobs["RECORDS"]),
            "BENCH_BOOTSTRAP_SERVERS": servers,
            **postgresql.for_airflow("airflow"),
        }
        connections: dict[str, dict[str, Any]] = {
            "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": servers}},
            "spark_default": {
                "conn_type": "spark",
                "host": "local[2]",
                "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
            },
            "spark_connect": {"conn_type": "spark_connect", "host": HOST, "port": connect.port},
        }
        home.mkdir()
        Ledger.open(f"sqlite:///{home}/kafka_eos_ledger.db", upgrade=True).close()
        dags = Path(__file__).with_name("dags")
        with LocalAirflow(home, dags, connections=connections, settings=settings, log=say) as airflow:
            cost = Cost(airflow, kafka, knobs["RECORDS"])
            cost.prepare()
            cost.loads(knobs["LOADS"])
            if knobs["DAYS"]:
                cost.backfills(knobs["DAYS"], knobs["ROUNDS"], knobs["AT_A_TIME"])
        text = page(
            cost.figures,
            records=knobs["RECORDS"],
            at_a_time=knobs["AT_A_TIME"],
            kafka_version=kafka.version,
            installed=providers(),
        )
    Path(os.environ.get("OUT", PAGE)).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
