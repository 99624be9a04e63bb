"""A load through Spark's packaged application, by SASL_SSL with SCRAM, with the least set of ACLs of docs/acls.md.

While it writes, its password is searched for wherever people can look: the command lines of all processes, Spark's UI,
the logs of the application at DEBUG, its files; and afterwards in manifest and ledger.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos import spark as package
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.sandbox.spark import quick_settings
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.acls import Right, allow_exactly
from tests.protocol.world import World
from tests.secured import SCRAM_PASSWORD, Secured, free_port

pytestmark = [pytest.mark.broker, pytest.mark.spark]

NAMESPACE, TOPIC, PRINCIPAL = "secured", "secured-orders", "User:loader"
LEAST = {
    Right("WRITE", "TransactionalId", f"{NAMESPACE}.*"),
    Right("WRITE", "Topic", TOPIC),
    Right("READ", "Topic", TOPIC),
}
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

    frame = spark.sql("select concat('v', id) value from range(0, 3, 1, 1)")
    return frame.mapInArrow(hold, frame.schema)
"""


@pytest.fixture
def grants(secured: Secured) -> Iterator[Secured]:
    secured.plain.create_topic(TOPIC, partitions=2)
    allow_exactly(secured.plain, PRINCIPAL, LEAST)
    yield secured
    allow_exactly(secured.plain, PRINCIPAL, ())


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def command_lines() -> str:
    """Of every process of this machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(found)


def test_a_load_passes_with_the_least_rights_and_shows_no_password(grants: Secured, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger.open(url, upgrade=True).close()
    (tmp_path / "job.py").write_text(JOB)
    load = LoadIdentity(NAMESPACE, "orders", "day")
    with connect(grants.loader(), url, NAMESPACE) as session:
        world = World(session, grants.loader(), TOPIC, load)
        ref = reference(session, world.open_attempt())
        spec = ApplicationSpec(
            WriteOptions(ref, str(tmp_path / "m"), (TOPIC,), 60_000, int(time.time() * 1000) + 400_000),
            job=str(tmp_path / "job.py"),
            job_args={"marks": str(tmp_path)},
        )
        shown, output = run(spec, grants, tmp_path)
        manifest = ManifestStore(spec.options.manifest_dir).read(ref)
        record_prepared(session, manifest)
        world.decide(manifest)
        world.commit()
        plain = KafkaSettings.from_mapping({"bootstrap.servers": grants.plain.bootstrap_servers})
        assert replace(world, settings=plain).visible() == ["v0", "v1", "v2"]
        assert world.open_ids() == []
    assert "application.py" in shown["command lines"]
    assert "SparkSubmit" in shown["command lines"]
    assert "spark.log.level" in shown["environment"]
    assert "DEBUG" in output
    files = {str(p): p.read_bytes().decode(errors="replace") for p in tmp_path.rglob("*") if p.is_file()}
    assert str(tmp_path / "ledger.db") in files
    assert len([name for name in files if name.startswith(spec.options.manifest_dir)]) > 1
    for place, text in {**shown, "output": output, **files}.items():
        assert SCRAM_PASSWORD not in text, place


def run(spec: ApplicationSpec, secured: Secured, folder: Path) -> tuple[dict[str, str], str]:
    """What could be seen while it wrote, and all that it printed."""
    port = free_port()
    environment = {"PYTHONPATH": str(APPLICATION.parents[2]), "PYSPARK_PYTHON": sys.executable}
    settings = {SETTINGS_VARIABLE: json.dumps(secured.loader_extra())}
    submitted = subprocess.Popen(
        [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]",
         "--conf", "spark.ui.enabled=true", "--conf", f"spark.ui.port={port}", "--conf", "spark.log.level=DEBUG",
         str(APPLICATION), "--spec", spec.to_json()],
        env=os.environ | quick_settings(folder / "conf") | environment | settings,
        cwd=folder, stdout=(printed := (folder / "printed").open("w+")), stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 120
        while not (folder / "writing").exists() and submitted.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        shown = {"command lines": command_lines()}
        rest = f"http://127.0.0.1:{port}/api/v1/applications"
        (application,) = json.loads(get(rest))
        shown["environment"] = get(f"{rest}/{application['id']}/environment")
    finally:
        (folder / "go").touch()
        try:
            submitted.wait(timeout=120)
        finally:
            submitted.kill()
            printed.close()
    output = (folder / "printed").read_text(errors="replace")
    assert submitted.returncode == 0, output[-3000:]
    return shown, output
