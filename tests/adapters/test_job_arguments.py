"""What a run asks its job for: when that is compared with other runs', and what it says then. No I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.operators.asked_for import (
    asked_before,
    asked_for_something_else,
    digest_of,
    follow_from_run,
)
from airflow_kafka_eos.spark.dag_file import JOB, job_args

ROW = AttemptRow(
    LoadIdentity("airflow", "orders.load", "2026-01-01T08:30:00+00:00"),
    1,
    "orders/by hand#group=load",
    "2026-01-02",
    verdict=Verdict.COMMIT,
    decided_at="2026-01-02T08:31:00+00:00",
    arguments_sha256="a" * 64,
)


def keyed(key: str) -> AttemptRow:
    return replace(ROW, load=LoadIdentity("airflow", "orders.load", key))


@pytest.mark.parametrize(
    ("given", "follows"),
    [
        ("SELECT * FROM orders WHERE day = '{{ ds }}'", True),
        ({"day": "{{ data_interval_start | ds }}"}, True),
        ({"nested": [{"days": ["{{ macros.ds_add(ds, -1) }}"]}]}, True),
        ({"hour": "{% if logical_date %}x{% endif %}"}, True),
        ({"what": "{{ dag_run.conf['what'] }}"}, True),
        ({"what": "{{ params.what }}"}, True),
        ({"partition": "{{ partition_key }}"}, True),
        # the job finds out by itself what is new: it is asked for the same each time, and that is fine
        ("SELECT * FROM orders", False),
        ({"table": "orders", "count": 3, "none": None}, False),
        ({"where": "ds = 'not a template'"}, False),
        ({"path": "{{ var.value.bands }}"}, False),
        (None, False),
    ],
)
def test_only_what_is_made_of_the_run_is_compared(given: Any, follows: bool) -> None:
    assert follow_from_run(given) is follows


def digest(**changes: Any) -> str:
    arguments: dict[str, Any] = {"job": "j.py", "sql": None, "job_args": {"day": "x", "n": 1}, "topics": ["a", "b"]}
    return digest_of(**arguments | {"spark": [None, None]} | changes)


def test_the_digest_is_of_what_is_asked_for_in_any_order() -> None:
    assert digest() == digest(job_args={"n": 1, "day": "x"}, topics=("b", "a"))
    others: list[dict[str, Any]] = [
        {"job": "k.py"}, {"job_args": {"day": "y", "n": 1}}, {"topics": ["a"]}, {"spark": [{"day": "y"}, None]}
    ]  # fmt: skip
    assert len({digest(), *(digest(**other) for other in others)}) == 1 + len(others)


def test_a_function_of_the_dag_file_asks_for_the_same_wherever_its_file_is() -> None:
    def of(file: str, path: str, **arguments: Any) -> str:
        return digest(job=JOB, job_args=job_args(file, "d", "g", arguments, [path]))

    assert of("/bundles/1/d.py", "/bundles/1", day="x") == of("/bundles/2/d.py", "/bundles/2", day="x")
    assert of("/d.py", "/", day="x") != of("/d.py", "/", day="y")


def test_another_key_with_the_same_arguments_is_told_of_and_a_reload_is_not() -> None:
    mine = keyed("2026-01-01T09:30:00+00:00")
    assert "committed by orders/by hand#group=load" in asked_before(mine, [ROW])
    assert f"what the key {ROW.load.key}, and 1 more, asked for" in asked_before(mine, [keyed("x"), ROW])
    assert asked_before(mine, []) == asked_before(ROW, [ROW]) == ""
    assert asked_before(keyed(f"{ROW.load.key}~reload-2"), [ROW]) == "", "it is asked for by name"
    assert asked_before(ROW, [keyed(f"{ROW.load.key}~reload-2")]) == ""


def test_the_same_key_with_other_arguments_is_told_of_but_to_its_own_run() -> None:
    said = asked_for_something_else(ROW, "b" * 64, owner="orders/scheduled#group=load")
    assert "what this run asked for is not loaded" in said and "load_key coarser" in said
    assert asked_for_something_else(ROW, "a" * 64, owner="orders/scheduled#group=load") == ""
    assert asked_for_something_else(ROW, "b" * 64, owner=ROW.owner) == "", "its code has changed since"
    of_before = replace(ROW, arguments_sha256=None)
    assert asked_for_something_else(of_before, "b" * 64, owner="orders/scheduled#group=load") == ""
