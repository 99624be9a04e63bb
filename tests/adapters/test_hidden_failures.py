"""A failed load never shows a successful run, also where Airflow itself would show one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, BaseOperator, TaskGroup

from airflow_kafka_eos.operators import stream
from airflow_kafka_eos.sensors import CleanupLoadSensor, LoadedSensor, hidden_failure

DONE = {"begin": "success", "prepare": "success", "decide": "success", "commit": "success", "loaded": None}
MARKED = DONE | {"prepare": "failed", "decide": "skipped", "commit": "skipped", "loaded": "skipped"}


@pytest.mark.parametrize(
    ("load", "tasks", "hidden"),
    [
        ("COMMITTED", DONE, False),
        # what fails by itself needs no help, its leaf fails with it
        ("ABORTED", DONE | {"decide": "failed", "commit": "upstream_failed", "loaded": "upstream_failed"}, False),
        ("ABORTED", MARKED, True),
        # marked between two tasks, or as successful: nothing has failed
        ("ABORTED", MARKED | {"prepare": "success"}, True),
        (None, MARKED, True),
        # a run that was marked failed is to show it, although commit cannot be taken back
        ("COMMITTED", DONE | {"commit": "failed", "loaded": "skipped"}, True),
        # marked between two tasks, whatever as: committed, but nobody has waited for it, nor woken readers
        # (rule: loaded-is-visible)
        ("COMMITTED", DONE | {"commit": "skipped", "loaded": "skipped"}, True),
        ("COMMITTED", DONE | {"loaded": "skipped"}, True),
        # a task of the author's own
        ("COMMITTED", DONE | {"loaded": "success", "report": "skipped"}, False),
        ("COMMITTING", DONE | {"commit": "success", "loaded": "skipped"}, True),
    ],
)
def test_a_leaf_that_was_skipped_hides_a_failure(load: str | None, tasks: dict[str, str | None], hidden: bool) -> None:
    assert (hidden_failure(load, tasks, {"loaded"}) is not None) == hidden


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("ABORTED", "clear prepare with what is downstream of it"),
        ("COMMITTED", "Clear what was skipped, and cleanup"),
        ("IN_DOUBT", "Clear commit with what is downstream of it, and cleanup"),
        # clearing commit would do nothing for these, and for the first prepare would abort another run's attempt
        ("PREPARING", "Another run has a newer attempt of it: wait for that one"),
        ("ABORTING", "may still be open somewhere, and hold readers back: clear cleanup"),
        ("GIVEN_UP", "A person has given it up. It stays as it is"),
    ],
)
def test_cleanup_asks_for_its_own_group_and_map_index_and_fails_for_good(state: str, remedy: str) -> None:
    asked: dict[str, Any] = {}

    def get_task_states(**arguments: Any) -> dict[str, dict[str, str]]:
        asked.update(arguments)
        return {"run": {"load.seen_1": "skipped"}}

    ti = SimpleNamespace(
        dag_id="dag", run_id="run", map_index=1, task_id="load.cleanup", get_task_states=get_task_states
    )
    with DAG("dag", schedule=None) as dag:
        with TaskGroup("load"):
            sensor = CleanupLoadSensor(task_id="cleanup", load_name="l", load_key="k")
            LoadedSensor(task_id="seen", load_name="l", load_key="k")  # by its type, not by the group's usual name
        with TaskGroup("other"):
            LoadedSensor(task_id="seen", load_name="other")
        BaseOperator(task_id="x")
    context: Any = {"ti": ti, "dag": dag}
    done = {"status": "done", "summary": {"load": "airflow/l/k", "aborted": [], "problem": "1 is open", "state": state}}
    with pytest.raises(AirflowFailException, match=rf"1 is open.*load\.seen_1 skipped.* {remedy}"):
        sensor.execute_complete(context, done)
    assert asked == {"dag_id": "dag", "run_ids": ["run"], "task_ids": ["load.seen"], "map_index": 1}


@pytest.mark.parametrize(
    ("tasks", "hidden"),
    [
        ({"run": "success", "loaded": None}, False),
        # what fails by itself needs no help, its leaf fails with it
        ({"run": "failed", "loaded": "upstream_failed"}, False),
        ({"run": "failed", "loaded": None}, False),
        # the whole run was marked, as failed or as successful
        ({"run": "failed", "loaded": "skipped"}, True),
        ({"run": "success", "loaded": "skipped"}, True),
        # a branch before the group
        ({"run": "skipped", "loaded": "skipped"}, False),
        ({"run": None, "loaded": "skipped"}, False),
    ],
)
def test_so_of_a_streaming_query(tasks: dict[str, str | None], hidden: bool) -> None:
    assert (stream.hidden_failure(tasks, {"loaded"}) is not None) == hidden
