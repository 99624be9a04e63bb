"""The example DAGs in a real Airflow of their own: what runs there, and what a person does by its REST API."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_kafka_eos.hooks import Resolved
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from tests.airflow.rest import ENDED, health, wait_for
from tests.protocol.lost import read
from tests.protocol.world import World
from tests.reading import committed_values

#: seconds; everything runs at once, on machines with two cores
PATIENCE = 400


@dataclass(frozen=True)
class Examples:
    airflow: LocalAirflow
    bootstrap: str

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.airflow.home}/kafka_eos_ledger.db"

    def unpause(self, dag: str) -> None:
        self.airflow.patch(f"/dags/{dag}", {"is_paused": False})

    def pause(self, dag: str) -> None:
        self.airflow.patch(f"/dags/{dag}", {"is_paused": True})

    def come_to_rest(self, dags: Collection[str]) -> None:
        """Pause them where no run is going on: a paused DAG's run would stand still, and not end."""

        def going_on() -> list[str]:
            return [dag for dag in dags if any(r["state"] == "running" for r in self.runs(dag).values())]

        def at_rest() -> bool:
            if going_on():
                return False
            for dag in dags:
                self.pause(dag)
            begun_since = going_on()
            for dag in begun_since:
                self.unpause(dag)
            return not begun_since

        wait_for(at_rest, lambda: f"the end of {going_on()}; {health(self.airflow)}", PATIENCE)

    def trigger(self, dag: str, run_id: str, **body: Any) -> None:
        self.airflow.post(f"/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": None} | body)

    def runs(self, dag: str) -> dict[str, dict[str, Any]]:
        return {r["dag_run_id"]: r for r in self.airflow.get(f"/dags/{dag}/dagRuns")["dag_runs"]}

    def ended(self, dag: str, run_id: str | None = None) -> dict[str, Any]:
        """The run, or the only run, of a DAG once it has ended."""

        def run() -> dict[str, Any]:
            runs = self.runs(dag)
            return next(iter(runs.values()), {}) if run_id is None else runs.get(run_id, {})

        def missing() -> str:
            tasks = self.states(dag, run()["dag_run_id"]) if run() else "no run"
            return f"the end of {dag} {run_id or ''}: {tasks}; {health(self.airflow)}"

        wait_for(lambda: run().get("state") in ENDED, missing, PATIENCE)
        if run_id is None:
            assert len(self.runs(dag)) == 1, self.runs(dag)
        return run()

    def first(self, dag: str) -> str:
        """The first run of a DAG whose schedule may start another one while the test looks."""
        runs = wait_for(lambda: self.runs(dag), lambda: f"a run of {dag}; {health(self.airflow)}", PATIENCE)
        return str(min(runs.values(), key=lambda run: str(run["run_after"]))["dag_run_id"])

    def states(self, dag: str, run_id: str) -> dict[str, str]:
        path = f"/dags/{dag}/dagRuns/{run_id}/taskInstances"
        return {t["task_id"]: t["state"] for t in self.airflow.get(path)["task_instances"]}

    def returned(self, dag: str, run_id: str, task: str) -> Any:
        path = f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/xcomEntries/return_value"
        return self.airflow.get(path, deserialize=True, stringify=False)["value"]

    def clear(self, dag: str, run_id: str, *tasks: str) -> None:
        """With all that is behind them."""
        body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, "task_ids": list(tasks)}
        self.airflow.post(f"/dags/{dag}/clearTaskInstances", body | {"include_downstream": True})

    def answer(self, dag: str, run_id: str, task: str, choice: str, **params: str) -> None:
        """In Required Actions, as soon as it is asked."""
        states = partial(self.states, dag, run_id)
        wait_for(
            lambda: states().get(task) == "awaiting_input",
            lambda: f"{task} of {dag} {run_id} to ask: {states()}; {health(self.airflow)}", PATIENCE,
        )  # fmt: skip
        # as long as a person takes at least: Airflow 3.3 fails a task that goes on before its executor has reported the
        # end of its first process ("reported … finished with state success, but the task instance's state is queued")
        time.sleep(3)
        path = f"/dags/{dag}/dagRuns/{run_id}/taskInstances/{task}/-1/hitlDetails"
        self.airflow.patch(path, {"chosen_options": [choice], "params_input": params})

    def asset_events(self, dag: str) -> list[dict[str, Any]]:
        """That a DAG's tasks have made."""
        found: list[dict[str, Any]] = self.airflow.get("/assets/events", source_dag_id=dag)["asset_events"]
        return found

    def visible(self, topic: str) -> list[str]:
        return committed_values(self.bootstrap, topic, 2)

    def spans(self, topic: str, of: str) -> dict[str, list[int]]:
        """The first and the last offset that readers see, by partition, of records with that text in them."""
        with self.session() as session:
            every = read(self.world(session, topic, "any", "any"), "read_committed")
        seen = [m for m in every if of in (m[3] or b"").decode()]
        offsets = {p: [m[1] for m in seen if m[0] == p] for p in sorted({m[0] for m in seen})}
        return {str(p): [min(of), max(of)] for p, of in offsets.items()}

    def ledger(self) -> Ledger:
        return Ledger.open(self.ledger_url)

    def world(self, session: Any, topic: str, name: str, key: str) -> World:
        """A load of this Airflow's ledger, written by the test."""
        settings = KafkaSettings.from_mapping({"bootstrap.servers": self.bootstrap})
        return World(session, settings, topic, LoadIdentity("airflow", name, key))

    def session(self) -> Any:
        settings = KafkaSettings.from_mapping({"bootstrap.servers": self.bootstrap})
        return Resolved(settings, self.ledger_url).session("airflow")
