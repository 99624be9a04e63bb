"""The wiring is part of the guarantee (design.md, the Airflow side), and the README tells the truth about it."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_kafka_eos import ExactlyOnceLoad
from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.ledger.rows import AttemptRow
from airflow_kafka_eos.load import LoadIdentity, Verdict
from airflow_kafka_eos.operators.base import DEFAULT_LOAD_KEY, MAX_OWNER, are_siblings, owner_of
from airflow_kafka_eos.operators.begin import refuse_siblings_key
from airflow_kafka_eos.operators.prepare import PrepareLoadOperator

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def group() -> ExactlyOnceLoad:
    with DAG("orders", schedule=None, start_date=datetime(2026, 1, 1)):
        return ExactlyOnceLoad("load_orders", job="jobs/orders.py", topics=["orders"])


def test_the_tasks_stand_in_the_order_of_the_protocol(group: ExactlyOnceLoad) -> None:
    downstream = {
        t.task_id.removeprefix("load_orders."): {
            d.removeprefix("load_orders.") for d in t.downstream_task_ids
        }
        for t in group.dag.tasks
    }
    assert downstream == {
        "begin": {"prepare", "cleanup"},
        "prepare": {"decide"},
        "decide": {"commit"},
        "commit": {"cleanup", "loaded"},
        "cleanup": set(),
        "loaded": set(),
    }


def test_cleanup_is_the_teardown_of_begin_and_its_failure_fails_the_run(group: ExactlyOnceLoad) -> None:
    assert (group.begin.is_setup, group.cleanup.is_teardown) == (True, True)
    assert group.cleanup.on_failure_fail_dagrun


def test_loaded_is_the_groups_only_leaf(group: ExactlyOnceLoad) -> None:
    """A leaf that succeeds although the load failed would show the run as successful."""
    assert [t.task_id for t in group.get_leaves()] == ["load_orders.loaded"]


def test_names_default_to_dag_and_group(group: ExactlyOnceLoad) -> None:
    tasks = (group.begin, group.prepare, group.decide, group.commit, group.cleanup, group.loaded)
    assert {(t.load_name, t.load_key, t.namespace) for t in tasks} == {
        ("orders.load_orders", DEFAULT_LOAD_KEY, "airflow")
    }


@pytest.mark.parametrize("taken", ["application", "application_args", "durable"])
def test_what_prepare_sets_itself_is_refused(taken: str) -> None:
    with pytest.raises(ConfigurationError, match=taken):
        PrepareLoadOperator(task_id="p", load_name="x", topics=["t"], job="j.py", **{taken: True})


def test_prepare_never_reconnects_to_an_older_application(group: ExactlyOnceLoad) -> None:
    assert group.prepare.durable is False  # rule 3


def test_spark_arguments_reach_spark_submit() -> None:
    with DAG("spark", schedule=None, start_date=datetime(2026, 1, 1)):
        load = ExactlyOnceLoad("l", sql="SELECT 1", topics=["t"], spark_args={"conf": {"spark.x": "1"}})
    assert load.prepare.conf == {"spark.x": "1"}


def test_the_readmes_smallest_dag_is_a_dag_of_less_than_15_lines() -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert len(code.strip().splitlines()) < 15
    space: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), space)
    assert isinstance(space["ExactlyOnceLoad"], type)


class _Instance:
    def __init__(self, run_id: str = "run", map_index: int = -1) -> None:
        self.dag_id, self.run_id, self.map_index = "dag", run_id, map_index


def test_an_owner_is_the_run_and_the_map_index_never_the_try() -> None:
    assert owner_of({"ti": _Instance()}) == "dag/run"
    assert owner_of({"ti": _Instance(map_index=3)}) == "dag/run#map_index=3"


def test_long_owners_stay_different() -> None:
    one, two = (owner_of({"ti": _Instance("r" * 250 + end)}) for end in "ab")
    assert one != two
    assert max(len(one), len(two)) <= MAX_OWNER


def test_siblings_are_map_indexes_of_one_run() -> None:
    assert are_siblings("dag/run#map_index=0", "dag/run#map_index=1")
    assert not are_siblings("dag/run#map_index=0", "dag/run#map_index=0")
    assert not are_siblings("dag/run", "dag/run2")
    assert not are_siblings("dag/run#map_index=0", "dag/other#map_index=1")


def test_a_mapped_load_without_a_key_of_its_own_is_refused(group: ExactlyOnceLoad) -> None:
    """Its second map index would be taken for loaded already: a lost load."""
    with pytest.raises(AirflowFailException, match="load_key"):
        group.begin.pre_execute({"ti": _Instance(map_index=0)})
    group.begin.pre_execute({"ti": _Instance()})


def test_a_load_that_another_map_index_committed_does_not_pass_for_ours() -> None:
    row = AttemptRow(
        LoadIdentity("n", "l", "k"),
        1,
        "dag/run#map_index=0",
        "t",
        "t",
        "dag/run#map_index=0",
        "t",
        Verdict.COMMIT,
    )
    with pytest.raises(ConfigurationError, match="map index"):
        refuse_siblings_key(row, "dag/run#map_index=1")
    refuse_siblings_key(row, "dag/run#map_index=0")
    refuse_siblings_key(row, "dag/another run")
