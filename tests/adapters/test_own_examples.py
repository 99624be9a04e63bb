"""The examples of docs/any-submitter.md, by the providers' own operators, where they are installed.

CI has none of these providers: they bring 300 MB of clients. `pip install` those that the page names, then run this.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, BaseSensorOperator

from airflow_kafka_eos import ExactlyOnceLoad, Submit
from airflow_kafka_eos.operators.marks import Marks

PAGE = Path(__file__).parents[2] / "docs" / "any-submitter.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLES = [code for code in BLOCKS if "\nsubmit = Submit(" in code]
#: Where each operator keeps what it sends.
SENT = {
    "SparkKubernetesOperator": "template_spec",
    "DatabricksSubmitRunOperator": "json",
    "EmrAddStepsOperator": "steps",
    "DataprocSubmitJobOperator": "job",
    "LivyOperator": "spark_params",
}


def imported(code: str) -> tuple[str, str]:
    """The module and the operator that an example is of."""
    (found,) = [node for node in ast.parse(code).body if isinstance(node, ast.ImportFrom)]
    return str(found.module), found.names[0].name


def is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: imported(code)[1])
def test_it_parses_and_its_spec_reaches_the_application(code: str) -> None:
    module, name = imported(code)
    if not is_there(module):
        pytest.skip(f"{module} is not installed")
    space: dict[str, Any] = {"Submit": Submit}
    exec(compile(code, PAGE.name, "exec"), space)
    with DAG("example", schedule=None, start_date=datetime(2026, 1, 1)):
        load = ExactlyOnceLoad(
            "load", topics=["orders"], job="orders.py", manifest_dir="s3://lake/kafka-eos", submit=space["submit"]
        )
    assert load.submit is not None
    load.submit.render_template_fields({"dag_run": None, "params": {}, "ti": None})
    sent = repr(getattr(load.submit, SENT[name]))
    assert Marks().spec in sent or f"@{Marks().spec_file}" in sent
    assert "{{ kafka_eos" not in sent and not getattr(load.submit, "durable", False)
    if name.startswith("Databricks"):
        assert "{{secrets/kafka/eos}}" in sent


def test_a_spark_application_has_what_its_custom_resource_must_have() -> None:
    """Without the provider: it looks at nothing of this before the task runs."""
    (code,) = [code for code in EXAMPLES if imported(code)[1] == "SparkKubernetesOperator"]
    space: dict[str, Any] = {"Submit": lambda _, **arguments: arguments, "SparkKubernetesOperator": None}
    exec("\n".join(line for line in code.splitlines() if " import " not in line), space)
    body = space["submit"]["template_spec"]["spark"]
    assert (body["apiVersion"], body["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    assert {"type", "sparkVersion", "driver", "executor", "mainApplicationFile"} <= body["spec"].keys()


def test_each_operator_of_the_page_has_an_example() -> None:
    assert {imported(code)[1] for code in EXAMPLES} == SENT.keys()


def test_the_sensor_of_the_page_passes_where_nothing_was_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a load that is decided already, submit returns None."""
    (code,) = [block for block in BLOCKS if "class BatchIsOver(" in block]
    module = ModuleType("livy")

    class LivySensor(BaseSensorOperator):
        """Stands for the provider's, as far as the example goes."""

        template_fields = ("batch_id",)

        def __init__(self, *, batch_id: Any, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.batch_id = batch_id

        def poke(self, context: Any) -> bool:
            asked.append(self.batch_id)
            return True

    asked: list[Any] = []
    module.LivySensor = LivySensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.livy.sensors.livy", module)
    for name in ("airflow.providers.apache.livy", "airflow.providers.apache.livy.sensors"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with DAG("example", schedule=None, start_date=datetime(2026, 1, 1)):
        word = "{{ kafka_eos.spec }}"
        submit = Submit(PythonOperator, python_callable=print, op_args=[word])
        load = ExactlyOnceLoad("load", topics=["orders"], job="orders.py", manifest_dir="s3://lake/x", submit=submit)
        space: dict[str, Any] = {"load": load}
        exec(compile(code, PAGE.name, "exec"), space)
    sensor = space["sensor"]
    assert load.prepare.upstream_task_ids == {"load.submit", "batch_is_over"}
    assert sensor.upstream_task_ids == {"load.submit"}
    for returned in (None, 7):
        instance = SimpleNamespace(xcom_pull=lambda returned=returned, **_: returned, map_index=-1)
        task = sensor.prepare_for_execution()
        task.render_template_fields({"ti": instance, "dag_run": None, "params": {}, "run_id": "run"})
        task.execute({"ti": instance})
    assert asked == [7]
