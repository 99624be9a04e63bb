"""dags/approve_outsized.py: a person is asked about what is prepared, never about what is decided."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.hitl import ApprovalOperator

DAG_FILE = Path(__file__).parents[2] / "dags" / "approve_outsized.py"


@pytest.mark.parametrize(
    ("prepared", "asked"),
    [
        ({"records": 100}, True),
        ({"records": 10}, False),
        # committed before, and with lost parts that are prepared again (rule: one-key-loads-once)
        ({"verdict": "COMMIT"}, False),
        ({"verdict": "COMMIT", "prepared_again": [3], "records": 100}, False),
    ],
)
def test_a_person_is_asked_about_an_outsized_load_that_is_not_decided(
    prepared: dict[str, Any], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    approve = runpy.run_path(str(DAG_FILE))["approve"]
    questions: list[Any] = []
    monkeypatch.setattr(ApprovalOperator, "execute", lambda self, context: questions.append(context))
    context: Any = {"ti": SimpleNamespace(xcom_pull=lambda **_: prepared)}
    approve.execute(context)
    assert (questions == [context]) == asked
