"""Airflow in the Spark driver: with the environment that a task's supervisor leaves, and without a supervisor.

In an interpreter of its own, as a driver is one. The whole way is in tests/airflow/test_forms.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    # what airflow.sdk.execution_time.supervisor.block_orm_access leaves in a task's environment
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "airflow-db-not-allowed:///",
    "AIRFLOW__CORE__SQL_ALCHEMY_CONN": "airflow-db-not-allowed:///",
    "AIRFLOW_VAR_DAY": "monday",
    "AIRFLOW_CONN_DB": "postgres://host/x",
}
DRIVER = """
import json, os, sys
from pathlib import Path
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.spark.airflow_here import prepare_for_airflow, questions_refused
from airflow_kafka_eos.spark.find_job import find_job

prepare_for_airflow(os.environ)
answers = {"early": "airflow" in sys.modules}
for job in sys.argv[1:]:
    try:
        with questions_refused("the job"):
            answer = find_job(job)(None)
    except ConfigurationError as e:
        answer = f"refused: {e}"
    except Exception as e:
        answer = f"{type(e).__name__}: {e}"
    answers[Path(job).stem] = answer
print(json.dumps(answers))
"""
IMPORTS = "from airflow.sdk import DAG, BaseHook, Variable\nfrom airflow.models import Variable as Legacy\n"
#: what a job may ask for, and what it is told
QUESTIONS = {
    "default": ("Variable.get('week', default='none')", "the variable 'week'"),
    "variable": ("Variable.get('week')", "the variable 'week'"),
    "legacy": ("Legacy.get('week', default_var='none')", "the variable 'week'"),
    "connection": ("BaseHook.get_connection('other').host", "the connection 'other'"),
    "setting": ("Variable.set('week', 'x')", "PutVariable"),
}
JOBS = {
    "a_dag": IMPORTS
    + "from airflow_kafka_eos import ExactlyOnceLoad\n"
    "with DAG('d', schedule=None):\n"
    "    ExactlyOnceLoad('load', sql='SELECT 1', topics=['t'])\n"
    "def load(spark):\n"
    "    return f\"{Variable.get('day', default='none')} {BaseHook.get_connection('db').host}\"\n",
    "denied": "import airflow\ndef load(spark):\n    raise PermissionError('/secret')\n",
    **{f"inside_{n}": f"{IMPORTS}def load(spark):\n    return {q}\n" for n, (q, _) in QUESTIONS.items()},
    **{f"outside_{n}": f"{IMPORTS}\nasked = {q}\n" for n, (q, _) in QUESTIONS.items()},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="module")
def answers(home: Path) -> dict[str, Any]:
    """What a driver answers to each job file, one after the other."""
    for name, job in JOBS.items():
        (home / f"{name}.py").write_text(job)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "_AIRFLOW"))}
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, *(str(home / f"{name}.py") for name in JOBS)],
        env=clean | ENVIRONMENT | {"AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT)},
        cwd=home, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_a_dag_can_be_made_and_what_the_environment_says_is_found(home: Path, answers: dict[str, Any]) -> None:
    assert answers["a_dag"] == "monday host"
    assert answers["early"] is False, "a job that needs no Airflow imports none"
    assert not (home / "airflow.db").exists()


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_what_only_a_supervisor_knows_is_refused_and_no_default_taken(
    home: Path, answers: dict[str, Any], question: str, where: str
) -> None:
    name = f"{where}_{question}"
    said = f"refused: {home}/{name}.py, line 4, asks Airflow for {QUESTIONS[question][1]} where the Spark driver runs"
    assert answers[name].startswith(said)


def test_it_says_how_else_a_variable_comes_to_the_function(answers: dict[str, Any]) -> None:
    assert "Pass it to the function where the DAG calls it, as a template: '{{ var.value.week }}'" in answers[
        "outside_default"
    ]


def test_a_permission_that_the_job_lacks_is_its_own_error(answers: dict[str, Any]) -> None:
    assert answers["denied"] == "PermissionError: /secret"
