"""A stage that runs again: task attempts are counted from 0 anew, transactional ids are not.

Rule: id-per-task-attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_kafka_eos.kafka.admin.coordinator import Coordinator
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.spark.lost_shuffle import lose_shuffle
from tests.spark.writing import id_of, visible, write

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_task_of_a_stage_run_again_gets_an_id_of_its_own(
    spark: SparkSession, kafka: LocalKafka, topic: Callable[..., str], options: Callable[..., dict[str, str]],
    ref: AttemptRef, settings: KafkaSettings, still_open: Callable[[], list[str]], tmp_path: Path,
) -> None:
    """A true fetch failure: rows of the first try are in an open transaction when its shuffle files are gone."""
    name, lost = topic(2), lose_shuffle(spark, tmp_path / "lost")
    write(lost.frame, options(topic=name))

    runs = lost.runs()
    assert [(run.partition, run.attempt_number) for run in runs] == [(0, 0), (0, 0)], "the stage was not run again"
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.records == 300
    (accepted,) = [id_of(t.transactional_id).task_attempt_id for t in manifest.transactions]
    first, second = (run.task_attempt_id for run in runs)
    assert accepted == second > first
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        loser = str(TransactionalId(ref.load, ref.ledger_id, 1, 0, first))
        assert coordinator.describe([loser])[loser] is not None, "the first try had opened its transaction"
        for transaction in manifest.transactions:
            coordinator.end(transaction, Verdict.COMMIT)
        for left in coordinator.describe(still_open()).values():
            coordinator.end(PreparedTransaction(left.transactional_id, left.state), Verdict.ABORT)
    found = visible(kafka, name, 2, 300)
    assert sorted(found) == sorted((b"%d" % i, b"v" * 9000) for i in range(300))
