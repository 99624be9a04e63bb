"""Which undecided attempts a paused DAG holds up: those that nobody is at work on, and only where that is known."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.operators.base import run_of
from airflow_kafka_eos.operators.maintenance import PausedDags

OWNER = run_of("orders", "r1") + "load"


class Airflow:
    """As far as a task asks it: one paused DAG, and the states of the tasks of its run."""

    def __init__(self, **states: str | None) -> None:
        self.states = states
        self.asked: list[str] = []

    def get_dag(self, dag_id: str) -> Any:
        self.asked.append(dag_id)
        if dag_id == "gone":
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 404}))
        return SimpleNamespace(is_paused=dag_id != "at_work")

    def get_task_states(self, *, dag_id: str, run_ids: list[str]) -> dict[str, Any]:
        (run_id,) = run_ids
        return {run_id: {task.replace("__", "."): state for task, state in self.states.items()}}


def attempt(
    owner: str = OWNER, age_s: float = 60, submitted: bool = True, prepared: bool = True
) -> AttemptRow:
    then = (datetime.now(UTC) - timedelta(seconds=age_s)).isoformat(timespec="microseconds")
    at = then if submitted else None
    return AttemptRow(
        LoadIdentity("n", "l", "k"), 1, owner, then, submitted_at=at, prepared_at=at if prepared else None
    )


def held_up(airflow: Airflow, row: AttemptRow) -> bool:
    return PausedDags(airflow, timedelta(seconds=30)).hold_up(row)


@pytest.mark.parametrize(
    ("states", "held"),
    [
        ({"load__prepare": "success", "load__decide": None}, True),
        ({"load__prepare": "success", "load__approve": "deferred"}, True),
        ({"load__prepare": "up_for_retry"}, True),
        ({"load__prepare": "success", "another__prepare": "running"}, True),
        ({}, True),
        ({"load__prepare": "running"}, False),
        ({"load__prepare": "queued"}, False),
        ({"load__prepare": "success", "load__look": "running"}, False),
        ({"load__prepare_3": "running"}, False),  # of a mapped group
    ],
)
def test_a_task_of_the_group_that_is_at_work_is_waited_for(states: dict[str, str | None], held: bool) -> None:
    assert held_up(Airflow(**states), attempt()) is held


def test_a_driver_that_a_deferred_prepare_waits_for_is_at_work() -> None:
    """Its trigger has not fired. When it has, the paused DAG resumes nothing."""
    assert held_up(Airflow(load__prepare="deferred"), attempt(prepared=False)) is False
    assert held_up(Airflow(load__submit="deferred"), attempt(prepared=False)) is False
    assert held_up(Airflow(load__prepare="scheduled"), attempt(prepared=False)) is True


def test_another_that_has_deferred_may_wait_for_this_very_attempts_end() -> None:
    mapped = attempt(OWNER + "#map_index=0", prepared=False)
    assert held_up(Airflow(load__prepare_0="deferred"), mapped) is False
    for waiting in ("load__loaded_1", "load__prepare_1", "load__loaded_0"):
        assert held_up(Airflow(load__prepare_0="up_for_retry", **{waiting: "deferred"}), mapped) is True


def test_a_batch_of_a_query_is_of_the_run_that_has_started_its_driver() -> None:
    batch = replace(attempt(prepared=False), submitted_by="stream host blockmgr-1")
    assert held_up(Airflow(load__run="up_for_retry"), batch) is True
    assert held_up(Airflow(load__run="running"), batch) is False
    assert held_up(Airflow(load__run="up_for_retry"), replace(batch, owner="stream host blockmgr-1")) is False


@pytest.mark.parametrize(
    "of",
    [
        {"age_s": 0},
        {"submitted": False},
        {"owner": run_of("at_work", "r1") + "load"},
        {"owner": run_of("gone", "r1") + "load"},
        {"owner": run_of("orders", "r" * 300) + "load"},
        {"owner": "a person"},
    ],
    ids=["young", "nothing-written", "not-paused", "gone", "long-names", "no-run"],
)
def test_what_is_not_known_to_stand_still_is_left_alone(of: dict[str, Any]) -> None:
    assert held_up(Airflow(), attempt(**of)) is False


def test_airflow_is_asked_once_for_a_dag() -> None:
    airflow = Airflow()
    paused = PausedDags(airflow, timedelta(seconds=30))
    assert [paused.hold_up(attempt()), paused.hold_up(attempt())] == [True, True]
    assert airflow.asked == ["orders"]
