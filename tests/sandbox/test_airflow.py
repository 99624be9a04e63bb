"""The sandbox's Airflow on SQLite: a backfill does not end its scheduler, and what ends by itself is started again."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.sandbox.airflow import PARTS, LocalAirflow
from tests.airflow.processes import kill

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

DAYS = 28
PATIENCE_SECONDS = 240.0
NAMED_SECONDS = 10.0
#: longer than any answer to POST /backfills takes
STORM_SECONDS = 8.0
#: rare enough for some runs to be made before one is hindered
PAUSE_SECONDS = 0.03
#: the scheduler itself ends such tasks: no worker, no Spark
DAG = """
import pendulum
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("days", schedule="@daily", start_date=pendulum.datetime(2026, 1, 1), catchup=False):
    EmptyOperator(task_id="done")
"""
BODY = {
    "dag_id": "days",
    "from_date": "2026-01-01T00:00:00Z",
    "to_date": f"2026-01-{DAYS:02}T00:00:00Z",
    "max_active_runs": 16,
}


@dataclass(frozen=True)
class Here:
    airflow: LocalAirflow
    said: list[str]

    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags" / "days.py").write_text(DAG)
    said: list[str] = []
    with LocalAirflow(home, home / "dags", connections={}, log=said.append) as airflow:
        airflow.wait_for_dag("days")
        yield Here(airflow, said)
    assert not airflow.processes()


def wait(done: Callable[[], bool], what: Callable[[], str], seconds: float = PATIENCE_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, what()
        time.sleep(0.1)


@contextmanager
def storm(database: Path) -> Iterator[None]:
    """Another process's short writes to Airflow's database, one after the other."""
    over = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
            until, number = time.monotonic() + STORM_SECONDS, 0
            while not over.is_set() and time.monotonic() < until:
                number += 1
                connection.execute(f"PRAGMA user_version = {number}")
                time.sleep(PAUSE_SECONDS)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def runs(airflow: LocalAirflow) -> dict[str, str]:
    """Those of backfills: the schedule makes one of its own."""
    found = airflow.every("/dags/days/dagRuns", "dag_runs", run_type="backfill")
    return {r["logical_date"][:10]: r["state"] for r in found}


def test_a_backfill_into_a_busy_database_is_whole_and_ends_no_scheduler(here: Here) -> None:
    """Airflow answers "database is locked" with half of the runs made; the next scheduler would look at them."""
    airflow = here.airflow
    scheduler = airflow.process("scheduler").pid
    with storm(airflow.home / "airflow.db"):
        number = airflow.backfill(BODY)
    log = airflow.log_file("api-server").read_text(errors="replace")
    assert "path=/api/v2/backfills query= status_code=503" in log, "the storm hindered nobody: this tests nothing"
    days = {f"2026-01-{n:02}" for n in range(1, DAYS + 1)}
    wait(lambda: runs(airflow) == dict.fromkeys(days, "success"), lambda: f"{runs(airflow)} {here.text()}")
    wait(lambda: airflow.get(f"/backfills/{number}")["completed_at"] is not None, lambda: f"backfill {number}")
    assert airflow.process("scheduler").pid == scheduler
    assert "ended by itself" not in here.text()


def test_a_backfill_that_is_there_in_part_is_taken_back(here: Here) -> None:
    """What is left where Airflow's own taking back is hindered, too: nobody would make the other days."""
    airflow = here.airflow
    airflow.patch("/dags/days", {"is_paused": True})
    before = airflow._running_backfills("days"), airflow._run_ids("days")
    later = {"from_date": "2026-02-01T00:00:00Z", "to_date": "2026-02-03T00:00:00Z"}
    airflow.post("/backfills", BODY | later)
    assert len(airflow._run_ids("days") - before[1]) == 3
    airflow._take_back("days", *before)
    assert (airflow._running_backfills("days"), airflow._run_ids("days")) == before
    airflow.backfill(BODY | later)
    wait(lambda: list(runs(airflow).values()) == ["success"] * (DAYS + 3), lambda: f"{runs(airflow)}")


def test_a_part_that_is_killed_is_named_with_its_log_and_started_again(here: Here) -> None:
    airflow = here.airflow
    killed = {part: airflow.process(part) for part in PARTS}
    kill(*killed.values())
    for part in PARTS:
        line = f"Airflow's {part} ended by itself (killed by SIGKILL); started again (1), its log: "
        line += str(airflow.log_file(part))
        wait(lambda line=line: line in here.said, here.text, NAMED_SECONDS)  # type: ignore[misc]
    for part in PARTS:
        assert airflow.log_file(part).is_file()

    wait(airflow.is_healthy, lambda: f"{airflow.health()} {here.text()}")
    assert all(airflow.process(part).pid != killed[part].pid for part in PARTS)
    airflow.post("/dags/days/dagRuns", {"dag_run_id": "after", "logical_date": None})
    after = "/dags/days/dagRuns/after"
    wait(lambda: airflow.get(after)["state"] == "success", lambda: f"{airflow.get(after)} {airflow.health()}")


def test_a_part_that_ends_again_and_again_is_given_up_with_the_end_of_its_log(here: Here) -> None:
    """Runs last."""
    airflow = here.airflow
    while not _given_up(airflow):
        seen = len(here.said)
        kill(airflow.process("triggerer"))
        wait(lambda seen=seen: len(here.said) > seen, here.text, NAMED_SECONDS)  # type: ignore[misc]
    with pytest.raises(SandboxError, match=r"Airflow's triggerer ended 4 times .* its log ends with") as given_up:
        airflow.get("/dags")
    assert given_up.value.remedy == f"See {airflow.log_file('triggerer')}"


def _given_up(airflow: LocalAirflow) -> bool:
    try:
        airflow.check()
    except SandboxError:
        return True
    return False
