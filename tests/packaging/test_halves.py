"""What Spark's hosts install has no Airflow, is small, and prepares what an Airflow elsewhere decides (ADR 31)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.packaging.environments import installed, run, smoked
from tests.packaging.smoke import RECORDS

#: What pip needs for itself.
TOOLS = {"pip", "setuptools", "wheel"}
MOST_DISTRIBUTIONS, MOST_MIB = 10, 250
# an environment is installed, and compiles what it imports
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def spark_side(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of driver and executors."""
    return installed(built["wheel"], tmp_path_factory.mktemp("spark_side"))


def test_the_half_without_airflow_is_small(spark_side: Path, tmp_path: Path) -> None:
    shown = json.loads(run(spark_side, "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    names = {one["name"].lower() for one in shown} - TOOLS
    assert "airflow-kafka-eos" in names
    assert len(names) <= MOST_DISTRIBUTIONS, names
    assert not [name for name in names if "pyspark" in name or "apache-airflow" in name]
    (folder,) = (spark_side.parents[1] / "lib").glob("python*/site-packages")
    size = sum(
        file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file() and file.relative_to(folder).parts[0] not in TOOLS
    )
    assert size <= MOST_MIB << 20, size


@pytest.mark.broker
@pytest.mark.spark
def test_it_prepares_a_load_whose_airflow_runs_elsewhere(spark_side: Path, tmp_path: Path) -> None:
    """Airflow is this Python's; driver and executors run the other one, with the pyspark that SPARK_HOME has."""
    home = tmp_path / "home"
    home.mkdir()
    run(Path(sys.executable).with_name("airflow"), "db", "migrate", cwd=home)
    found = smoked(Path(sys.executable), home, spark_side)
    assert found["exit_code"] == 0
    assert found["values"] == sorted(f"order {n}" for n in range(RECORDS))
    told = json.loads((home / "told.json").read_text())
    for who in ("driver", "executor"):
        assert told[who]["package"].startswith(str(spark_side.parents[1])), told
        assert not told[who]["has_airflow"]


@pytest.mark.broker
def test_the_command_line_needs_no_airflow(
    built: dict[str, Path], kafka: LocalKafka, spark_side: Path, tmp_path: Path
) -> None:
    ours = installed(built["wheel"], tmp_path, "[ledger]").with_name("airflow-kafka-eos")
    ledger = {"AIRFLOW_KAFKA_EOS_LEDGER": f"sqlite:///{tmp_path}/ledger.db"}
    run(ours, "ledger", "upgrade", cwd=tmp_path, env=ledger)
    assert run(ours, "loads", "list", "--output", "json", cwd=tmp_path, env=ledger).endswith("\n[]\n")
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={kafka.bootstrap_servers}\n")
    for cluster in (("--bootstrap-server", kafka.bootstrap_servers), ("--command-config", config)):
        shown = run(ours, "transactions", "list", "--output", "json", *cluster, cwd=tmp_path, env=ledger)
        assert '"transactions": []' in shown
    # the smaller half says what is missing, and which extra has it
    said = run(spark_side.with_name("airflow-kafka-eos"), "loads", "list", cwd=tmp_path, env=ledger, code=2)
    assert "sqlalchemy, which is not installed in this Python. pip install 'airflow-kafka-eos[ledger]'" in said
    said = run(spark_side, "-c", "from airflow_kafka_eos import ExactlyOnceLoad", cwd=tmp_path, code=1)
    assert "ImportError: ExactlyOnceLoad needs airflow, which is not installed in this Python" in said
    assert "pip install 'airflow-kafka-eos[airflow]'" in said
