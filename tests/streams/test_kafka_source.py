"""Spark's own Kafka source in a query: it reads what was aborted unless it is told otherwise (docs/streams.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.spark.conftest import REPOSITORY, kafka_source_jars, spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_query_that_reads_what_was_aborted_is_known() -> None:
    jars = ",".join(map(str, kafka_source_jars()))
    done = subprocess.run(
        [sys.executable, "-m", "tests.streams.kafka_source_job", jars],
        cwd=REPOSITORY, env=os.environ | spark_environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [False, False, False, True, True, True]
