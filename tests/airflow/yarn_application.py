"""In the packaged application's place, without Spark, whose start takes the time: claims, writes, leaves a manifest.

``$TEST_YARN/hold``: it waits for ``$TEST_YARN/go`` before it writes; ``$TEST_YARN/fail``: it leaves an error.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from airflow_kafka_eos.arrow.engine import prepare
from airflow_kafka_eos.arrow.stream import Bounds
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE, handed_over
from airflow_kafka_eos.spark.errortext import FAILED
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.spec import ApplicationSpec
from airflow_kafka_eos.spark.spec_argument import read_spec
from tests.airflow.test_own_steps import rows

spec = ApplicationSpec.from_json(read_spec(sys.argv[2]))
store = ManifestStore(spec.options.manifest_dir)
folder = Path(os.environ["TEST_YARN"])
if (folder / "fail").exists():
    store.note_failed(spec.options.attempt, FAILED + "OSError: the disk is full")
    sys.exit(1)


def held() -> None:
    while (folder / "hold").exists() and not (folder / "go").exists():
        time.sleep(0.05)


settings = KafkaSettings.from_json(handed_over(os.environ, SETTINGS_VARIABLE) or "")
made = rows(wait=held)
prepare(spec, settings, store, lambda: made, bounds=Bounds(10**8, None), stop=threading.Event(), say=print)
