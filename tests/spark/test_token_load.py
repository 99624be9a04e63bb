"""A load by OAUTHBEARER through Spark's packaged application, with tokens that live 30 s and a job of two minutes.

The broker checks each token's signature, and ends a connection with the token that it was logged in by.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_eos import spark as package
from airflow_kafka_eos.kafka.client.settings import KafkaSettings
from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.load import LoadIdentity, WriterName
from airflow_kafka_eos.protocol.session import connect
from airflow_kafka_eos.protocol.stages.begin import record_prepared, reference
from airflow_kafka_eos.sandbox.spark import quick_settings
from airflow_kafka_eos.spark.driver_secrets import SETTINGS_VARIABLE
from airflow_kafka_eos.spark.manifest_store import ManifestStore
from airflow_kafka_eos.spark.options import WriteOptions
from airflow_kafka_eos.spark.spec import ApplicationSpec
from tests.kafka.identities import Logins, broker_with_logins
from tests.protocol.world import World

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]

NAMESPACE = "tokens"
LIFE_S, JOB_S = 30, 120
APPLICATION = Path(package.__file__).with_name("application.py")
#: Large enough that Spark hands each row on at once. None in the first forty seconds and the last: connections rest for
#: longer than a token lives, too.
JOB = f"""
import time

def load(spark):
    def slowly(batches):
        import pyarrow as pa
        for batch in batches:
            yield pa.RecordBatch.from_pydict({{"value": pa.array(["first" + "x" * 200_000])}})
            time.sleep({LIFE_S + 10})
            for second in range({JOB_S} - 2 * {LIFE_S + 10}):
                yield pa.RecordBatch.from_pydict({{"value": pa.array([f"v{{second}}" + "x" * 200_000])}})
                time.sleep(1)
            time.sleep({LIFE_S + 10})

    return spark.sql("select id from range(0, 1, 1, 1)").mapInArrow(slowly, "value string")
"""
VALUES = sorted(["first", *(f"v{second}" for second in range(JOB_S - 2 * (LIFE_S + 10)))])


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logins]:
    with broker_with_logins(tmp_path_factory.mktemp("logins")) as running:
        yield running


def submitted(spec: ApplicationSpec, extra: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(APPLICATION.parents[2]), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]",
         "--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=1", str(APPLICATION), "--spec", spec.to_json()],
        env=os.environ | quick_settings(folder / "conf") | environment | {SETTINGS_VARIABLE: json.dumps(extra)},
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400,
    )  # fmt: skip


@pytest.mark.parametrize("writer", [WriterName.ARROW, WriterName.CONFLUENT])
def test_a_job_outlives_its_tokens(logins: Logins, tmp_path: Path, writer: WriterName) -> None:
    topic = f"orders-{writer.value}"
    logins.plain.create_topic(topic, partitions=2)
    extra = logins.by_function(LIFE_S)
    settings = KafkaSettings.from_mapping(extra)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger.open(url, upgrade=True).close()
    (tmp_path / "job.py").write_text(JOB)
    before = logins.tokens_made()
    # one session for all of Airflow's steps: it rests for the job's two minutes
    with connect(settings, url, NAMESPACE) as session:
        world = World(session, settings, topic, LoadIdentity(NAMESPACE, "orders", writer.value))
        ref = reference(session, world.open_attempt())
        spec = ApplicationSpec(
            WriteOptions(ref, str(tmp_path / "m"), (topic,), 300_000, int(time.time() * 1000) + 400_000, writer=writer),
            job=str(tmp_path / "job.py"),
        )
        done = submitted(spec, extra, tmp_path)
        assert done.returncode == 0, done.stdout[-5000:]
        manifest = ManifestStore(spec.options.manifest_dir).read(ref)
        record_prepared(session, manifest)
        world.decide(manifest)
        world.commit()
        plain = KafkaSettings.from_mapping({"bootstrap.servers": logins.plain.bootstrap_servers})
        assert sorted(value.rstrip("x") for value in replace(world, settings=plain).visible()) == VALUES
        assert world.open_ids() == []
    made = {pid: count - before.get(pid, 0) for pid, count in logins.tokens_made().items()}
    assert made[os.getpid()] >= 2, "Airflow's side, before and after"
    assert max(made.values()) >= JOB_S // LIFE_S, "the Spark task that wrote"


@pytest.mark.parametrize("name", ["raising", "no_such"])
def test_a_driver_whose_provider_is_in_trouble_says_so_and_writes_nothing(
    logins: Logins, tmp_path: Path, name: str
) -> None:
    """What is well on Airflow's host need not be there."""
    topic = f"trouble-{name}".replace("_", "-")
    logins.plain.create_topic(topic, partitions=1)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    Ledger.open(url, upgrade=True).close()
    (tmp_path / "job.py").write_text(JOB)
    extra = logins.by_function(LIFE_S)
    settings = KafkaSettings.from_mapping(extra)
    with connect(settings, url, NAMESPACE) as session:
        world = World(session, settings, topic, LoadIdentity(NAMESPACE, "orders", topic))
        ref = reference(session, world.open_attempt())
        spec = ApplicationSpec(
            WriteOptions(ref, str(tmp_path / "m"), (topic,), 60_000, int(time.time() * 1000) + 120_000),
            job=str(tmp_path / "job.py"),
        )
        done = submitted(spec, extra | {"oauth_cb": f"tests.kafka.token_providers.{name}"}, tmp_path)
        assert done.returncode != 0
        assert f"the token provider 'tests.kafka.token_providers.{name}' (oauth_cb) " in done.stdout
        assert "cr3dential-of-mine" not in done.stdout
        assert world.open_ids() == []
