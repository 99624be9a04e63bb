"""A Spark Connect server's client in a process of its own: ``python -m tests.testing.by_connect PORT SPEC``."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial

from airflow_kafka_eos.connect.engine import Job, prepare
from airflow_kafka_eos.connect.remote import Remote
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.kafka.client.wire import Wire
from airflow_kafka_eos.operators.by_connect import _call
from airflow_kafka_eos.sandbox.keeping import HOST
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.find_job import by_value, find_job
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.spec import ApplicationSpec

#: Rows of a batch: the writer is to get some while the source holds back others.
FEW_ROWS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "5"}


def main(port: str, text: str) -> None:
    spec = ApplicationSpec.from_json(text)
    settings = KafkaSettings.from_json(os.environ[SETTINGS_VARIABLE])
    assert spec.job is not None
    with Wire(settings) as wire:
        cluster_id = wire.cluster_id()
    function = find_job(spec.job, loaded=by_value, where="here")
    store = ManifestStore(spec.options.manifest_dir)
    job = Job(
        partial(_call, function, dict(spec.job_args)), "kafka_default", cluster_id,
        lambda: store.superseded_by(spec.options.attempt), FEW_ROWS,
    )  # fmt: skip
    prepare(
        spec, settings, store, Remote("spark_connect", HOST, int(port)), job,
        stop=threading.Event(), say=print,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
