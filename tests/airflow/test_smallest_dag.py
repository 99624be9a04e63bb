"""The first DAG that anybody writes: whoever starts it, and whenever, each day is loaded once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from airflow_kafka_eos.load import LoadIdentity, LoadState
from tests.airflow.conftest import Place
from tests.airflow.counting import PARTITIONS, Count, count
from tests.airflow.dags.jobs.days import RECORDS
from tests.airflow.rest import ENDED, Run, health, past_midnight, wait_for, wait_for_dag

DAG, GROUP, TOPIC = "orders", "load_orders", "orders"
STEPS = ("begin", "prepare", "decide", "commit", "cleanup", "loaded")
SECONDS = 420
ALREADY = "Already committed: nothing is written again"
#: how long the days that the DAG loads must stay the same
ONE_DAY_SECONDS = 600
pytestmark = pytest.mark.timeout(1200 + ONE_DAY_SECONDS)


def counted(place: Place, days: list[date], topic: str = TOPIC, copies: int = 1) -> Count:
    expected = [f"{day} {n}" for day in days for n in range(RECORDS)] * copies
    return count(place.bootstrap, topic, expected, ids=f"{topic}%2E")


def all_of(days: list[date]) -> Count:
    return Count(len(days) * RECORDS, 0, 0, 0, ())


def runs(place: Place, dag: str = DAG) -> dict[str, dict[str, Any]]:
    return {r["dag_run_id"]: r for r in place.airflow.get(f"/dags/{dag}/dagRuns", limit=100)["dag_runs"]}


def ended(place: Place, number: int, dag: str = DAG) -> dict[str, dict[str, Any]]:
    """All runs, once there are so many of them, and all have ended."""

    def over() -> bool:
        found = runs(place, dag)
        return len(found) >= number and all(run["state"] in ENDED for run in found.values())

    wait_for(over, lambda: f"{number} runs of {dag} to end: {states(place, dag)}; {health(place.airflow)}", SECONDS)
    return runs(place, dag)


def states(place: Place, dag: str) -> dict[str, Any]:
    tasks = place.airflow.get(f"/dags/{dag}/dagRuns/~/taskInstances", limit=200)["task_instances"]
    return {f"{t['dag_run_id']} {t['task_id']}": t["state"] for t in tasks}


def trigger(place: Place, run_id: str, logical_date: str | None, dag: str = DAG) -> Run:
    wait_for_dag(place.airflow, dag)
    place.airflow.post(f"/dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": logical_date})
    return Run(place.airflow, dag, run_id)


def task(run_id: str, step: str, dag: str = DAG, group: str = GROUP) -> str:
    return f"/dags/{dag}/dagRuns/{quote(run_id)}/taskInstances/{group}.{step}"


def returned(place: Place, path: str) -> dict[str, Any]:
    value: dict[str, Any] = place.airflow.get(
        f"{path}/xcomEntries/return_value", deserialize=True, stringify=False
    )["value"]
    return value


def shown(place: Place, run_id: str, dag: str = DAG) -> dict[str, Any]:
    """The run's load on the page."""
    # Airflow 3.1 takes nobody for its admin who brings no token
    token = httpx.get(f"{place.airflow.url}/auth/token", timeout=60).json()["access_token"]
    answer = httpx.get(
        f"{place.airflow.url}/kafka-eos/api/loads",
        params={"dag_id": dag, "run_id": run_id}, headers={"Authorization": f"Bearer {token}"}, timeout=60,
    )  # fmt: skip
    (load,) = answer.raise_for_status().json()["loads"]
    found: dict[str, Any] = load
    return found


def test_each_day_is_loaded_once_by_schedule_backfill_api_ui_and_clear(place: Place) -> None:
    past_midnight(ONE_DAY_SECONDS)
    first = date.fromisoformat(place.airflow.env["TEST_TODAY"]) - timedelta(days=3)  # of the DAG
    # three; one more where midnight has passed since this Airflow was started
    days = [first + timedelta(days=n) for n in range((datetime.now(UTC).date() - first).days)]
    place.kafka.create_topic(TOPIC, partitions=PARTITIONS)
    wait_for_dag(place.airflow, DAG)

    # a day before the DAG is unpaused by a backfill, the others by the schedule: it was paused while they passed
    body = {"dag_id": DAG, "from_date": f"{days[0]}T00:00:00Z", "to_date": f"{days[0]}T00:00:00Z", "max_active_runs": 1}
    place.airflow.backfill(body)
    automatic = ended(place, len(days))
    assert {(r["run_type"], r["logical_date"][:10], r["state"]) for r in automatic.values()} == {
        ("backfill", str(days[0]), "success"),
        *(("scheduled", str(day), "success") for day in days[1:]),
    }, f"{states(place, DAG)}; {health(place.airflow)}"
    assert counted(place, days) == all_of(days)
    of_day = {date.fromisoformat(r["logical_date"][:10]): run_id for run_id, r in automatic.items()}
    scheduled = of_day[days[-1]]
    links = place.airflow.get(f"{task(scheduled, 'begin')}/links", map_index=-1)["extra_links"]
    assert (links[ALREADY], returned(place, task(scheduled, "begin"))["note"]) == (None, "")

    # by the API at another hour, and as the UI does it, now: both name the last whole day before that, which is loaded
    by_hand = {
        trigger(place, "by-the-api", f"{days[-1]}T08:30:00Z"): days[-2],
        trigger(place, "by-the-ui", datetime.now(UTC).isoformat()): days[-1],
    }
    undated = trigger(place, "undated", None)
    assert [run.wait() for run in by_hand] == ["success", "success"]
    for run, day in by_hand.items():
        begun = returned(place, task(run.id, "begin"))
        assert (begun["load_key"], begun["verdict"]) == (str(day), "commit")
        by = f"Already committed by {DAG}/{of_day[day]}#group={GROUP}, decided at "
        assert begun["note"].startswith(f"{by}20")
        links = place.airflow.get(f"{task(run.id, 'begin')}/links", map_index=-1)["extra_links"]
        assert links[ALREADY].endswith(f"/runs/{quote(run.id)}/plugin/kafka-transactions-run")
        on_page = shown(place, run.id)
        assert on_page["note"] == f"{by}{on_page['decided_at']}: this run has written nothing."
    assert shown(place, scheduled)["note"] == ""

    # a run without a date names no day, so it loads none, and says what to do
    assert undated.wait() == "failed"
    tasks = place.airflow.get(f"/dags/{DAG}/dagRuns/undated/taskInstances")["task_instances"]
    begun = next(t for t in tasks if t["task_id"] == f"{GROUP}.begin")
    assert (begun["state"], begun["try_number"]) == ("failed", 1), "no retry gives it a date"
    log = stored_log(place, "undated")
    assert "it was triggered without a logical date" in log and "Trigger it once more with a logical date" in log

    # cleared as a whole
    place.airflow.post(
        f"/dags/{DAG}/clearTaskInstances",
        {
            "dry_run": False,
            "only_failed": False,
            "dag_run_id": scheduled,
            "task_ids": [f"{GROUP}.{step}" for step in STEPS],
        },
    )
    again = Run(place.airflow, DAG, scheduled)
    assert again.wait() == "success"
    assert returned(place, task(scheduled, "begin"))["note"].startswith("Already committed by this run itself")
    assert counted(place, days) == all_of(days)
    keys = {row.load.key: row.state for row in place.ledger.loads("airflow", f"{DAG}.{GROUP}")}
    assert keys == {str(day): LoadState.COMMITTED for day in days}


def stored_log(place: Place, run_id: str) -> str:
    found = list((place.airflow.home / "logs").rglob(f"*run_id={run_id}/task_id={GROUP}.begin/attempt=1.log"))
    assert len(found) == 1, found
    return found[0].read_text(encoding="utf-8")


def test_a_key_that_is_finer_than_what_the_job_reads_is_told_of(place: Place) -> None:
    """The default key has the time of day, the job gets only the date: what it writes is there twice."""
    place.kafka.create_topic("finer", partitions=PARTITIONS)
    day = date.fromisoformat(place.airflow.env["TEST_TODAY"]) - timedelta(days=1)
    first = trigger(place, "first", f"{day}T08:30:00Z", "finer")
    assert first.wait() == "success"
    assert "warning" not in returned(place, task("first", "prepare", "finer", "load"))
    second = trigger(place, "second", f"{day}T09:30:00Z", "finer")
    assert second.wait() == "success"
    warning = returned(place, task("second", "prepare", "finer", "load"))["warning"]
    assert warning.startswith(
        f"The key {day}T09:30:00+00:00 asks the job for exactly what the key {day}T08:30:00+00:00 asked for, "
        "committed by finer/first#group=load, decided at 20"
    ), warning
    assert "load_key is finer than what the job reads" in warning
    assert f"same arguments as that of {day}T08:30:00+00:00, committed too" in shown(place, "second", "finer")["note"]
    assert counted(place, [day], "finer", copies=2) == all_of([day, day])
    rows = place.ledger.attempts(LoadIdentity("airflow", "finer.load", f"{day}T08:30:00+00:00"))
    assert [len(row.arguments_sha256 or "") for row in rows] == [64]
