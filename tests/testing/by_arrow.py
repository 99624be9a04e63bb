"""``engine="arrow"`` in a process of its own: ``python -m tests.testing.by_arrow SPEC``."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial

from airflow_kafka_eos.arrow.engine import prepare
from airflow_kafka_eos.arrow.stream import Bounds
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.find_job import find_job
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.spec import ApplicationSpec


def main(text: str) -> None:
    spec = ApplicationSpec.from_json(text)
    settings = KafkaSettings.from_json(os.environ[SETTINGS_VARIABLE])
    assert spec.job is not None
    prepare(
        spec, settings, ManifestStore(spec.options.manifest_dir),
        partial(find_job(spec.job, where="here"), **spec.job_args),
        bounds=Bounds(1 << 26), stop=threading.Event(), say=print,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
