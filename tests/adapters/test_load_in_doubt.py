"""dags/load_in_doubt.py: what a person's answer must say; tests/airflow has the rest, on real parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_kafka_eos.hooks import KafkaEosHook

FILE = Path(__file__).parents[2] / "dags" / "load_in_doubt.py"
PARAMS = {"namespace": "airflow", "name": "orders.load", "key": "k"}


@pytest.mark.parametrize("given", [{}, {"reason": ""}, {"reason": " \n"}, None])
def test_nothing_is_given_up_without_a_reason(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    asked: list[object] = []
    monkeypatch.setattr(KafkaEosHook, "resolve", lambda self: asked.append(self))
    bag = DagBag(FILE, bundle_name="dags-folder")
    assert not bag.import_errors
    act = bag.dags["load_in_doubt"].get_task("act")
    answer = {"responded_by_user": {"name": "ann"}, "chosen_options": ["Give up"], "params_input": given}
    with pytest.raises(AirflowFailException, match=r"airflow/orders\.load/k is given up with a reason only.*Clear ask"):
        act.python_callable(answer, PARAMS)  # type: ignore[union-attr]
    assert asked == []
