"""Whether an undecided attempt waits for nothing but a paused DAG: nobody goes on with it until a person unpauses.

Rule: decide-at-once.

A paused DAG schedules no further task of a running run, and resumes no deferred one; a task that runs, runs on. Asked
of Airflow by a task's own way (the execution API), for tasks cannot read its database.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_kafka_eos.operators.base import MAX_OWNER_PART, dag_and_run_of, group_of, group_of_task

if TYPE_CHECKING:
    from airflow_kafka_eos.ledger.rows import AttemptRow

log = logging.getLogger(__name__)

#: A worker has the task, or is about to have it. Deferred is none of them: it waits for the scheduler.
_AT_WORK = frozenset({"running", "queued", "restarting"})


class PausedDags:
    """Answers for one sweep: what it has heard of a DAG or a run it asks no second time.

    :param ti: the sweep's own task instance.
    :param paused_after: how long an attempt must have shown no life.
    """

    def __init__(self, ti: Any, paused_after: timedelta) -> None:
        self._ti = ti
        self._paused_after = paused_after
        self._is_paused: dict[str, bool] = {}
        self._states: dict[tuple[str, str], dict[str, str | None]] = {}

    def hold_up(self, attempt: AttemptRow) -> bool:
        """False too where it is not known: a run or DAG of a name too long for the ledger, or one that is gone."""
        from airflow_kafka_eos.protocol.leftovers import last_sign

        run_part = attempt.responsible.partition("#")[0]
        named = dag_and_run_of(attempt.responsible)
        if named is None or len(run_part) >= MAX_OWNER_PART or not attempt.is_submitted:
            return False
        if datetime.now().astimezone() - last_sign(attempt) < self._paused_after:
            return False
        dag_id, run_id = named
        return self._paused(dag_id) and not self._is_at_work(dag_id, run_id, group_of(attempt.responsible))

    def _paused(self, dag_id: str) -> bool:
        if dag_id not in self._is_paused:
            try:
                self._is_paused[dag_id] = bool(self._ti.get_dag(dag_id).is_paused)
            except AirflowRuntimeError as e:
                log.info("whether DAG %s is paused is not known: %s", dag_id, e)
                self._is_paused[dag_id] = False
        return self._is_paused[dag_id]

    def _is_at_work(self, dag_id: str, run_id: str, group: str) -> bool:
        if (dag_id, run_id) not in self._states:
            found = self._ti.get_task_states(dag_id=dag_id, run_ids=[run_id])
            self._states[dag_id, run_id] = found.get(run_id, {})
        states = self._states[dag_id, run_id]
        return any(state in _AT_WORK for task, state in states.items() if group_of_task(task) == group)
