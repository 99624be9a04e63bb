"""What a running application shows of its settings: Spark's UI and its REST interface have no secret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_kafka_eos import spark as package
from airflow_kafka_eos.manifest import AttemptRef
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from airflow_kafka_eos.sandbox.spark import quick_settings
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.secured import free_port

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SECRET = "hunter2-never-shown"
USER = "user-never-shown"
APPLICATION = Path(package.__file__).with_name("application.py")
JOB = """
import os, time

def load(spark, marks):
    def hold(batches):
        open(f"{marks}/writing", "w").close()
        end = time.monotonic() + 240
        while not os.path.exists(f"{marks}/go") and time.monotonic() < end:
            time.sleep(0.1)
        yield from batches

    frame = spark.sql("select 'v' value")
    return frame.mapInArrow(hold, frame.schema)
"""


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_the_ui_of_a_running_application_shows_no_secret(
    kafka: LocalKafka, topic: Callable[..., str], ref: AttemptRef, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    port = free_port()
    spec = ApplicationSpec(
        WriteOptions(ref, str(tmp_path / "m"), (topic(1),), 60_000, int(time.time() * 1000) + 400_000),
        job=str(tmp_path / "job.py"),
        job_args={"marks": str(tmp_path)},
    )
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "sasl.username": USER, "sasl.password": SECRET}
    environment = {"PYTHONPATH": str(APPLICATION.parents[2]), "PYSPARK_PYTHON": sys.executable}
    submitted = subprocess.Popen(
        [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]",
         "--conf", "spark.ui.enabled=true", "--conf", f"spark.ui.port={port}",
         str(APPLICATION), "--spec", spec.to_json()],
        env=os.environ | quick_settings(tmp_path / "conf") | environment | {SETTINGS_VARIABLE: json.dumps(settings)},
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "writing").exists() and submitted.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        base = f"http://127.0.0.1:{port}"
        (application,) = json.loads(get(f"{base}/api/v1/applications"))
        rest = f"{base}/api/v1/applications/{application['id']}"
        shown = {
            path: get(rest + path)
            for path in ("/environment", "/sql?details=true&planDescription=true", "/jobs", "/stages", "/executors")
        } | {page: get(f"{base}{page}/") for page in ("/environment", "/SQL", "/jobs", "/stages", "/executors")}
        try:
            shown["plan"] = get(f"{base}/SQL/execution/?id=0")
        except urllib.error.HTTPError as e:
            pytest.fail(f"the page of the write is not there: {e}")
    finally:
        (tmp_path / "go").touch()
        try:
            out, _ = submitted.communicate(timeout=120)
        finally:
            submitted.kill()
    assert submitted.returncode == 0, out
    assert ManifestStore(spec.options.manifest_dir).read(ref).records == 1
    # these are the places where options, arguments and environment would show
    assert "application.py" in shown["/environment"]
    assert "kafka_eos(" in shown["/sql?details=true&planDescription=true"]
    for place, text in {**shown, "output": out}.items():
        assert SECRET not in text, place
        assert USER not in text, place
