"""prepare is killed: its spark-submit ends, and Kafka is told nothing that the ledger does not say first.

Rule: decide-before-kafka.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import CONTEXT, LOAD, open_ids, operator, run, session
from tests.kafka.open_transactions import wait_until
from tests.reading import committed_values

JOB = Path(__file__).parent / "dags" / "jobs" / "endless.py"


def _spark() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("airflow_kafka_eos/spark/application.py" in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.spark
def test_on_kill_ends_spark_and_leaves_the_transaction_to_the_ledger(
    home: Path, kafka: LocalKafka, topic: Callable[..., str]
) -> None:
    name = topic()
    run("begin", "killed")
    prepare = operator("prepare", "killed", topics=[name], sql=None, job=str(JOB), job_args={"seconds": 600})
    ended: list[BaseException | None] = []

    def execute() -> None:
        try:
            prepare.execute(CONTEXT)
            ended.append(None)
        except BaseException as e:
            ended.append(e)

    task = threading.Thread(target=execute)
    task.start()
    try:
        wait_until(lambda: bool(open_ids("killed")) or bool(ended), "an open transaction", 120)
        started = _spark()
        assert started and not ended
    finally:
        prepare.on_kill()
        task.join(60)
    assert isinstance(ended[0], AirflowException)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []
    # no decision, so nobody may have ended it; cleanup makes the attempt undecidable first
    load = LoadIdentity("airflow", LOAD, "killed")
    with session() as opened:
        (row,) = opened.ledger.attempts(load)
        assert row.is_undecided and row.is_submitted and not row.is_prepared
    assert len(open_ids("killed")) == 1
    run("cleanup", "killed")
    assert open_ids("killed") == []
    assert committed_values(kafka.bootstrap_servers, name, 1) == []
