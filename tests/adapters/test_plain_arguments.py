"""Each argument of a load that stands in no group reaches the steps that take it, past whatever default_args say."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset

from airflow_kafka_eos import Cursor, ExactlyOnceLoad, Submit
from airflow_kafka_eos.argument_groups import GROUPS
from airflow_kafka_eos.signatures import _KNOWN, GroupArguments


def rows(connection: Any, manifest: Any) -> None: ...


BASH = Submit(BashOperator, runs_here=True, bash_command="run {{ kafka_eos.spec }}")
EVERY = ("begin", "prepare", "decide", "commit", "cleanup", "loaded")
_BEGUN = "{{ ti.xcom_pull(task_ids='load.begin', map_indexes=ti.map_index)['load_key'] }}"
#: Argument: a value that is no step's default, and what each step that takes it makes of it, by the step's attribute.
TAKEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "topics": (["a"], {f"{step}.topics": ["a"] for step in ("begin", "prepare", "loaded")}),
    "job": ("jobs/other.py", {"prepare.job": "jobs/other.py"}),
    "sql": ("SELECT 1", {"prepare.sql": "SELECT 1"}),
    "job_args": ({"x": 1}, {"prepare.job_args": {"x": 1}}),
    "load_name": ("n", {f"{step}.load_name": "n" for step in EVERY}),
    "load_key": ("k", {f"{step}.load_key": "k" for step in EVERY}),
    "item": ("i", {"begin.item": "i", "prepare.load_key": _BEGUN}),
    "on_committed": ("fail", {"begin.on_committed": "fail"}),
    "namespace": ("ns", {f"{step}.namespace": "ns" for step in EVERY}),
    "kafka_conn_id": ("kc", {f"{step}.kafka_conn_id": "kc" for step in EVERY}),
    "ledger_conn_id": ("lc", {f"{step}.ledger_conn_id": "lc" for step in EVERY}),
    "spark_conn_id": ("sc", {"prepare._conn_id": "sc"}),
    "spark_args": ({"driver_memory": "1g"}, {"prepare._driver_memory": "1g"}),
    "cursor": (Cursor(first_since=0), {"prepare.cursor": Cursor(first_since=0)}),
    "engine": ("arrow", {"prepare.engine": "arrow"}),
    "max_batch_bytes": (1000, {"prepare.max_batch_bytes": 1000}),
    "dual_write_sql": ("INSERT", {"decide.dual_write_sql": "INSERT"}),
    "dual_write": (rows, {"decide.dual_write": rows}),
    "decide_at_once": (False, {"prepare.decide_at_once": False}),
    "value_format": ("json", {"prepare.value_format.name": "json"}),
    "registry_conn_id": ("rc", {"prepare.registry_conn_id": "rc"}),
    "manifest_dir": ("/m", {"prepare.manifest_dir": "/m", "decide.manifest_dir": "/m"}),
    "submit": (BASH, {"prepare.upstream_task_ids": {"load.submit"}}),
    "deferrable": (False, {"cleanup.deferrable": False, "loaded.deferrable": False}),
    "outlets": ([Asset("o")], {"loaded.outlets.0.name": "o"}),
    "asset_events": (False, {"loaded.outlets": []}),
    "asset_server": ("b:1", {"loaded.asset_server": "b:1"}),
}
#: Others that pass, for what must not speak. None for what a task has no argument of the name for.
OTHER: dict[str, Any] = {
    "topics": ["z"], "job_args": {"y": 2}, "load_name": "other", "load_key": "other", "item": "other",
    "on_committed": "reload", "namespace": "other", "kafka_conn_id": "other", "ledger_conn_id": "other",
    "dual_write_sql": "UPDATE", "decide_at_once": True, "value_format": "string", "registry_conn_id": "other",
    "manifest_dir": "/other", "deferrable": True, "outlets": [Asset("z")], "asset_server": "z:1",
    "engine": "spark", "max_batch_bytes": 7, "cursor": Cursor(first_since=9),
}  # fmt: skip


def found(load: ExactlyOnceLoad, path: str) -> Any:
    value: Any = load
    for name in path.split("."):
        if name.isdecimal():
            value = value[int(name)] if value[int(name) :] else None
        else:
            value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def seen(given: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    with DAG("plain", schedule=None, start_date=datetime(2026, 1, 1), default_args=OTHER):
        load = ExactlyOnceLoad("load", **given)
    return {path: found(load, path) for path in paths}


@pytest.mark.parametrize("name", TAKEN)
def test_each_reaches_its_steps(name: str) -> None:
    """``ledger_conn_id`` is what a dual write needs, and a load has a job, or a query."""
    value, wanted = TAKEN[name]
    given: dict[str, Any] = {"topics": ["t"], "job": "jobs/orders.py", "ledger_conn_id": "l", name: value}
    if name == "sql":
        del given["job"]
    if name == "max_batch_bytes":
        given["engine"] = "arrow"  # refused with any other
    assert seen(given, wanted) == wanted
    without = {"topics": ["t"], "job": "jobs/orders.py"} | {n: v for n, v in given.items() if n != name}
    assert seen(without, wanted) != wanted  # the value is no default


def test_there_is_no_other() -> None:
    """An argument that no step gets is one that does nothing: name here where it arrives."""
    assert TAKEN.keys() == _KNOWN - GroupArguments.__annotations__.keys() - GROUPS.keys() - {"group_id"}
