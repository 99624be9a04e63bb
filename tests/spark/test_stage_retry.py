"""A stage that runs again: task attempts are counted from 0 anew, transactional ids are not (rule 5)."""

from __future__ import annotations

import json

import pytest

from airflow_kafka_eos.kafka.coordinator import Coordinator
from airflow_kafka_eos.kafka.wire import Wire
from airflow_kafka_eos.load import Verdict
from airflow_kafka_eos.naming import TransactionalId
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.transaction import PreparedTransaction
from tests.spark.writing import visible, write

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_task_of_a_stage_run_again_gets_an_id_of_its_own(
    spark, kafka, topic, options, ref, settings, still_open, tmp_path
):
    """A true fetch failure: rows of the first try are in an open transaction when its shuffle files are gone."""
    seen, files = tmp_path / "seen", str(tmp_path / "files")
    seen.mkdir()

    def rows_then_no_shuffle(batches):
        import glob
        import os
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        first = not os.path.exists(f"{seen}/gone")
        yield from batches
        with open(f"{seen}/{context.stageId()}-{context.taskAttemptId()}.json", "w") as file:
            json.dump([context.partitionId(), context.attemptNumber(), context.taskAttemptId()], file)
        if first:
            with open(files) as listed:
                for folder in json.load(listed):
                    for path in glob.glob(f"{folder}/blockmgr-*/*/shuffle_*"):
                        os.remove(path)
            open(f"{seen}/gone", "w").close()
            time.sleep(0.5)

    folders = spark.sparkContext._jvm.org.apache.spark.util.Utils.getConfiguredLocalDirs(
        spark.sparkContext._jsc.sc().conf()
    )
    (tmp_path / "files").write_text(json.dumps(list(folders)))
    # one task: first 200 rows of its own, then 100 from a shuffle, read only when those have gone out
    plain = spark.sql("select cast(id as string) key, repeat('v', 9000) value from range(0, 200, 1, 1)")
    shuffled = spark.sql("select cast(id as string) key, repeat('v', 9000) value from range(200, 300, 1, 1)")
    frame = plain.mapInArrow(rows_then_no_shuffle, plain.schema).union(shuffled.repartition(1, "key")).coalesce(1)
    name = topic(2)
    write(frame, options(topic=name))

    attempts = [json.loads(path.read_text()) for path in seen.glob("*.json")]
    assert [a[:2] for a in attempts] == [[0, 0], [0, 0]], "the stage was not run again"
    manifest = ManifestStore(str(tmp_path)).read(ref)
    assert manifest.records == 300
    (accepted,) = [TransactionalId.parse(t.transactional_id).task_attempt_id for t in manifest.transactions]
    assert accepted == max(a[2] for a in attempts) != min(a[2] for a in attempts)
    with Wire(settings) as wire:
        coordinator = Coordinator(wire, namespace=ref.load.namespace, ledger_id=ref.ledger_id)
        loser = str(TransactionalId(ref.load, ref.ledger_id, 1, 0, min(a[2] for a in attempts)))
        assert coordinator.describe([loser])[loser] is not None, "the first try had opened its transaction"
        for transaction in manifest.transactions:
            coordinator.end(transaction, Verdict.COMMIT)
        for left in coordinator.describe(still_open()).values():
            coordinator.end(PreparedTransaction(left.transactional_id, left.state), Verdict.ABORT)
    found = visible(kafka, name, 2, 300)
    assert sorted(found) == sorted((b"%d" % i, b"v" * 9000) for i in range(300))
