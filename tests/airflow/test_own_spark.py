"""A user with a Spark of their own needs no pyspark where Airflow runs."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.airflow.steps import run
from tests.reading import committed_values
from tests.spark.bare_python import python_without


@pytest.mark.timeout(600)
def test_dags_are_parsed_and_loads_prepared_without_pyspark(
    home: Path, kafka: LocalKafka, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is of Airflow's Python, and gets pyspark from that Spark, as spark-submit arranges it."""
    name = topic()
    bare = python_without(home / "venv", "pyspark")
    spark = Path(sysconfig.get_paths()["purelib"]) / "pyspark"
    for key in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(key, raising=False)
    environment = os.environ | {
        "SPARK_HOME": str(spark),
        "PATH": f"{spark / 'bin'}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin{os.pathsep}/bin",
    }
    script = Path(__file__).with_name("without_pyspark.py")
    done = subprocess.run([bare, str(script), name], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("prepared ")]
    assert made["records"] == 5
    for step in ("decide", "commit", "cleanup"):
        run(step, "own spark")
    assert committed_values(kafka.bootstrap_servers, name, 1) == list("01234")
