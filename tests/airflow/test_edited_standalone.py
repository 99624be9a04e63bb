"""The DAG file is rewritten while a run is at work, in a real Airflow: nothing is there twice, nothing stays open."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, LoadState
from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.counting import PARTITIONS, Count, count
from tests.airflow.rest import Run, wait_for

pytestmark = pytest.mark.timeout(900)
RECORDS = 50
JOB = """
import time
from pathlib import Path

def rows(moment):
    import pyarrow as pa

    here = Path(moment)
    here.with_suffix(".here").touch()
    while here.with_suffix(".hold").exists():
        time.sleep(0.1)
    return pa.table({{"value": [f"{{n}}" for n in range({records})]}})
"""
DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_kafka_eos import ExactlyOnceLoad, Transactions

with DAG({dag!r}, schedule=None):
    ExactlyOnceLoad(
        {group!r}, engine="arrow", job={job!r}, job_args={{"moment": {moment!r}}}, topics=[{topic!r}],
        load_name={name!r}, load_key={key!r}, decide_at_once={at_once!r},
        transactions=Transactions(quiet_period=timedelta(seconds=2)),
    )
"""


class Edited:
    """One DAG in a file that a test rewrites."""

    def __init__(self, airflow: LocalAirflow, kafka: LocalKafka, name: str, *, at_once: bool) -> None:
        self.name, self.at_once, self.kafka = name, at_once, kafka
        self.moment = airflow.home / name
        self.file = airflow.home / "dags" / f"{name}.py"
        kafka.create_topic(name, partitions=PARTITIONS)
        self.deploy("a")
        self.run = Run(airflow, name, "run")

    def deploy(self, key: str, group: str = "load") -> None:
        job = f"{self.moment.parent}/job.py:rows"
        text = DAG.format(dag=self.name, job=job, moment=str(self.moment), topic=self.name, key=key, group=group,
                          name=self.name if group == "load" else None,
                          at_once=self.at_once)  # fmt: skip
        self.file.with_suffix(".new").write_text(text)
        self.file.with_suffix(".new").rename(self.file)

    def edited_while_it_writes(self, key: str = "b", group: str = "load") -> str:
        self.moment.with_suffix(".hold").touch()
        self.run.start()
        here = self.moment.with_suffix(".here")
        wait_for(here.exists, lambda: f"prepare: {self.run.tasks()}")
        self.deploy(key, group)
        self.moment.with_suffix(".hold").unlink()
        return self.run.wait()

    def clear(self, task: str) -> str:
        self.run.clear(task, downstream=True)
        time.sleep(1)
        return self.run.wait()

    def count(self, *, whole: bool) -> None:
        found = count(self.kafka.bootstrap_servers, self.name, map(str, range(RECORDS)))
        missing = 0 if whole else RECORDS
        assert found == Count(RECORDS - missing, missing, 0, 0, ()), self.run.tasks()

    def log_of(self, task: str, group: str = "load") -> str:
        path = f"dag_id={self.name}/run_id=run/task_id={group}.{task}"
        files = sorted((self.run.airflow.home / "logs" / path).rglob("*.log"))
        return "\n".join(file.read_text(errors="replace") for file in files)


@pytest.fixture(scope="module")
def airflow(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAirflow]:
    home = tmp_path_factory.mktemp("edited")
    (home / "dags").mkdir()
    (home / "job.py").write_text(JOB.format(records=RECORDS))
    connections = {"kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}}
    # a new file is found at once; what is edited, tasks alone read anew, as with a DAG processor that is behind
    settings = {"AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2"}
    with LocalAirflow(home, home / "dags", connections=connections, settings=settings) as started:
        yield started


def state(airflow: LocalAirflow, name: str, key: str) -> LoadState | None:
    with Ledger.open_existing(f"sqlite:///{airflow.home}/kafka_eos_ledger.db") as ledger:
        return ledger.state(LoadIdentity("airflow", name, key))


def test_what_is_decided_at_once_is_not_loaded_again_under_the_new_key(
    airflow: LocalAirflow, kafka: LocalKafka
) -> None:
    load = Edited(airflow, kafka, "edited_at_once", at_once=True)
    assert load.edited_while_it_writes() == "failed"
    assert "this run has begun airflow/edited_at_once/a" in load.log_of("decide")
    assert "Cleanup is of what the run has begun" in load.log_of("cleanup")
    load.count(whole=True)
    assert load.clear("prepare") == "failed"
    assert "this run has loaded airflow/edited_at_once/a into edited_at_once" in load.log_of("begin")
    load.count(whole=True)
    assert (state(airflow, load.name, "a"), state(airflow, load.name, "b")) == (LoadState.COMMITTED, None)
    load.deploy("a")
    assert load.clear("prepare") == "success"
    load.count(whole=True)


def test_what_is_not_decided_is_ended_and_loaded_once_under_the_new_key(
    airflow: LocalAirflow, kafka: LocalKafka
) -> None:
    load = Edited(airflow, kafka, "edited_undecided", at_once=False)
    assert load.edited_while_it_writes() == "failed"
    load.count(whole=False)
    assert state(airflow, load.name, "a") is LoadState.ABORTED
    assert load.clear("prepare") == "success"
    load.count(whole=True)
    assert state(airflow, load.name, "b") is LoadState.COMMITTED


def test_a_group_that_is_renamed_is_not_loaded_beside_itself(airflow: LocalAirflow, kafka: LocalKafka) -> None:
    """Airflow adds the tasks of the new one to the run that is under way, without a click."""
    load = Edited(airflow, kafka, "edited_group", at_once=True)
    assert load.edited_while_it_writes("a", "renamed") == "failed"
    assert "airflow/edited_group/a" in load.log_of("begin", "renamed"), load.run.tasks()
    found = count(kafka.bootstrap_servers, load.name, map(str, range(RECORDS)))
    assert (found.seen, found.duplicate, found.open) == (RECORDS, 0, ()), load.run.tasks()
