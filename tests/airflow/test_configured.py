"""What stands beside the loads looks where section ``[kafka_eos]`` says that they are, not into another ledger."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.triggers import report_unfinished_loads
from tests.airflow.steps import connection
from tests.airflow.test_maintenance import TaskInstance, state
from tests.protocol.world import World

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture
def configured(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], World]]:
    """A factory of loads where the section has ledger, cluster and namespace; the default connection leads nowhere."""
    from airflow_kafka_eos.hooks import KafkaEosHook

    name = topic(partitions=2)
    settings = {"bootstrap.servers": kafka.bootstrap_servers}
    connection(monkeypatch, "kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    connection(monkeypatch, "kafka_prod", "kafka", extra=settings)
    connection(monkeypatch, "the_ledger", "sqlite", host=f"{home}/theirs.db")
    for key, value in {"namespace": name, "kafka_conn_id": "kafka_prod", "ledger_conn_id": "the_ledger"}.items():
        monkeypatch.setenv(f"AIRFLOW__KAFKA_EOS__{key.upper()}", value)
    Ledger.open(f"sqlite:///{home}/theirs.db", upgrade=True).close()
    with KafkaEosHook("kafka_prod", "the_ledger").resolve().session(name, timeout_s=20) as session:
        yield lambda key: World(
            session, KafkaSettings.from_mapping(settings), name, LoadIdentity(name, "a.load", key)
        )


def shipped(name: str, folder: Path = DAGS) -> Any:
    """The DAG of a file in dags/, parsed as Airflow does."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(folder / f"{name}.py", bundle_name="dags-folder")
    assert not bag.import_errors
    return bag.dags[name]


def printed(name: str, folder: Path) -> Any:
    """The DAG of that name in the quick start, as a reader of it copies it."""
    page = (DAGS.parent / "docs" / "quick-start.md").read_text(encoding="utf-8")
    (source,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if f'DAG("{name}"' in block)
    (folder / f"{name}.py").write_text(source)
    return shipped(name, folder)


@pytest.mark.parametrize("where", ["dags", "quick-start"])
def test_the_shipped_maintenance_sweeps_the_loads_and_takes_none_for_a_strangers(
    configured: Callable[[str], World], where: str, tmp_path: Path
) -> None:
    """In another ledger all that is prepared would be another's, and a person told to end it (rule: only-our-ids)."""
    left, decided = configured("left"), configured("decided")
    gone = left.prepare(["never"]).transactions[0].transactional_id
    decided.decide(decided.prepare(["decided"]))
    name = "kafka_eos_maintenance"
    dag = shipped(name) if where == "dags" else printed(name, tmp_path)
    sweep = dag.get_task("sweep")
    sweep.abandoned_after = timedelta(milliseconds=1)
    found = sweep.execute({"ti": TaskInstance()})[left.load.namespace]
    assert (found["other_ledgers"], found["unknown"], found["problems"]) == ([], [], [])
    assert {s["load"]: s["aborted"] for s in found["swept"]} == {str(left.load): [gone], str(decided.load): []}
    assert (state(left), state(decided)) == (LoadState.ABORTED, LoadState.COMMITTED)


def test_the_deadline_reports_the_loads(configured: Callable[[str], World]) -> None:
    world = configured("late")
    world.prepare(["a"])
    assert [row["load"] for row in json.loads(asyncio.run(report_unfinished_loads()))["oldest"]] == [str(world.load)]


def test_a_person_decides_about_the_load(configured: Callable[[str], World]) -> None:
    world = configured("decided")
    world.decide(world.prepare(["a"]))
    dag = shipped("load_in_doubt")
    params = {"namespace": dag.params["namespace"], "name": world.load.name, "key": world.load.key}
    answer = {"responded_by_user": {"name": "somebody"}, "chosen_options": ["Recover"]}
    assert dag.get_task("act").python_callable(answer, params) == "COMMITTED"


def test_arguments_win(configured: Callable[[str], World]) -> None:
    from airflow_kafka_eos.operators.maintenance import SweepLeftoversOperator

    configured("none")
    mine: dict[str, Any] = {
        "namespaces": ["mine"], "kafka_conn_id": "my_kafka", "ledger_conn_id": "my_ledger",
        "quiet_period": timedelta(0),
    }  # fmt: skip
    task = SweepLeftoversOperator(task_id="sweep", **mine)
    assert {key: getattr(task, key) for key in mine} == mine
