"""Where prepare may decide by itself: only where nothing of the author's stands between it and decide."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_kafka_eos import ExactlyOnceLoad
from airflow_kafka_eos.operators.decide import DecideLoadOperator
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator
from airflow_kafka_eos.operators.preparing import PreparingOperator, decide_behind


def group(**arguments: Any) -> ExactlyOnceLoad:
    return ExactlyOnceLoad("load", job="j.py", topics=["t"], **arguments)


def plain() -> ExactlyOnceLoad:
    return group()


def behind_prepare_and_not_before_decide() -> ExactlyOnceLoad:
    load = group(default_args={"retries": 3, "retry_delay": timedelta(minutes=1), "pool": "kafka"})
    load.prepare >> EmptyOperator(task_id="tell")
    EmptyOperator(task_id="first") >> load >> EmptyOperator(task_id="last")
    return load


def mapped() -> ExactlyOnceLoad:
    made: list[ExactlyOnceLoad] = []
    real = ExactlyOnceLoad.__init__

    def note(self: ExactlyOnceLoad, *positional: Any, **named: Any) -> None:
        real(self, *positional, **named)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExactlyOnceLoad, "__init__", note)
        ExactlyOnceLoad.partial("tables", job="j.py").expand(topic=["a", "b"])
    return made[0]


@pytest.mark.parametrize("made_by", [plain, behind_prepare_and_not_before_decide, mapped])
def test_prepare_decides_where_nothing_stands_between(made_by: Callable[[], ExactlyOnceLoad]) -> None:
    with DAG("at_once", schedule=None):
        load = made_by()
    found = decide_behind(load.prepare)
    assert isinstance(found, DecideLoadOperator) and found is load.decide


def approved() -> PreparingOperator:
    load = group()
    load.prepare >> EmptyOperator(task_id="approve") >> load.decide
    return load.prepare


def beside() -> PreparingOperator:
    """Both may begin when begin is done; decide waits for both."""
    load = group()
    load.begin >> EmptyOperator(task_id="look") >> load.decide
    return load.prepare


def by_argument() -> PreparingOperator:
    return group(decide_at_once=False).prepare


def in_order_of_runs() -> PreparingOperator:
    return group(default_args={"depends_on_past": True}).prepare


def before_decide(context: Any) -> None:
    """An author's gate."""


def behind_prepare(context: Any, result: Any = None) -> None:
    """Another one."""


def hook_before_decide() -> PreparingOperator:
    return group(default_args={"pre_execute": before_decide}).prepare


def hook_behind_prepare() -> PreparingOperator:
    return group(spark_args={"post_execute": behind_prepare}).prepare


class Gated(DecideLoadOperator):
    def execute(self, context: Any) -> Any:
        return super().execute(context)


class Checked(PrepareLoadOperator):
    def execute(self, context: Any) -> Any:
        return super().execute(context)


def by_hand(
    prepare: type[PrepareLoadOperator] = PrepareLoadOperator,
    decide: type[DecideLoadOperator] = DecideLoadOperator,
    deciders: int = 1,
    **of_decide: Any,
) -> PreparingOperator:
    made = prepare(task_id="prepare", load_name="l", sql="SELECT 1", topics=["t"])
    for number in range(deciders):
        made >> decide(task_id=f"decide_{number}", load_name="l", **of_decide)
    return made


@pytest.mark.parametrize(
    ("made_by", "why"),
    [
        (approved, "it waits for approve"),
        (beside, "it waits for look"),
        (by_argument, "decide_at_once=False"),
        (in_order_of_runs, "it waits for the run before"),
        (hook_before_decide, "a pre_execute or post_execute stands before it"),
        (hook_behind_prepare, "a pre_execute or post_execute stands before it"),
        (lambda: by_hand(decide=Gated), "Gated overrides execute"),
        (lambda: by_hand(prepare=Checked), "Checked overrides execute"),
        (lambda: by_hand(trigger_rule="all_done"), "its trigger rule is all_done"),
        (lambda: by_hand(deciders=0), "0 tasks behind prepare decide"),
        (lambda: by_hand(deciders=2), "2 tasks behind prepare decide"),
    ],
)
def test_prepare_leaves_it_to_decide_where_an_author_stands_between(
    made_by: Callable[[], PreparingOperator], why: str
) -> None:
    with DAG("apart", schedule=None):
        prepare = made_by()
    assert decide_behind(prepare) == why


def test_a_prepare_of_no_dag_decides_nothing() -> None:
    prepare = PrepareLoadOperator(task_id="prepare", load_name="l", sql="SELECT 1", topics=["t"])
    assert decide_behind(prepare) == "prepare is in no DAG"
    with DAG("by_hand", schedule=None):
        assert isinstance(decide_behind(by_hand()), DecideLoadOperator)
