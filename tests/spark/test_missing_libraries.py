"""An executor that lacks a library says so itself, and nothing is left open."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.spark.errortext import printed_error
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.spark.bare_python import python_without
from tests.spark.conftest import spark_environment
from tests.spark.test_application import submit


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_library_with_machine_code_that_executors_lack_is_named(
    ref: AttemptRef, kafka: LocalKafka, topic: Callable[..., str], tmp_path: Path, still_open: Callable[[], list[str]]
) -> None:
    bare = python_without(tmp_path / "venv", "crc32c", "lz4")
    deadline = int(time.time() * 1000) + 600_000
    spec = ApplicationSpec(
        WriteOptions(ref, str(tmp_path / "m"), (topic(),), 60_000, deadline),
        sql="select 'v' value from range(2)",
    )
    conf = ("--conf", f"spark.pyspark.python={bare}", "--conf", f"spark.pyspark.driver.python={sys.executable}",
            "--conf", "spark.ui.enabled=false")  # fmt: skip
    code, out, err = submit(spec, kafka.bootstrap_servers, spark_environment(), *conf)
    kind, message = printed_error(out) or (None, out + err)
    assert (code, kind) == (1, ConfigurationError), message
    assert f"lacks crc32c, lz4 ({bare}" in message
    assert still_open() == []
