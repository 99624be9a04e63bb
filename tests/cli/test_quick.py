"""What makes a command slow is imported by those alone that need it: Airflow takes seconds of a call.

How long calls take: ``python -m bench.cli_start``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kafka_eos.ledger.ledger import Ledger
from airflow_kafka_eos.sandbox.kafka import LocalKafka
from tests.cli.shell import environment

HEAVY = ("airflow", "alembic", "confluent_kafka", "kafka", "numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy")
CODE = """
import sys
from airflow_kafka_eos.cli import main
code = 0
try:
    code = main()
except SystemExit as ended:
    code = ended.code
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""
CONNECTION = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}})


def imported(home: Path, code: int, *arguments: str, **more: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], env=environment(home, more), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return set(done.stderr.splitlines()[-1].split()) & set(HEAVY)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Ledger.open(f"sqlite:///{tmp_path}/kafka_eos_ledger.db", upgrade=True).close()
    (tmp_path / "airflow.cfg").write_text("[kafka_eos]\nnamespace = payments\n[core]\nexecutor = LocalExecutor\n")
    return tmp_path


@pytest.mark.parametrize("arguments", ["--help", "--version", "transactions list --help", "examples list"])
def test_what_needs_neither_ledger_nor_cluster_imports_nothing_heavy(home: Path, arguments: str) -> None:
    assert imported(home, 0, *arguments.split()) == set()


def test_what_the_ledger_knows_needs_sqlalchemy_alone(home: Path) -> None:
    assert imported(home, 0, "loads", "list") == {"sqlalchemy"}
    connection = json.dumps({"conn_type": "sqlite", "host": f"{home}/kafka_eos_ledger.db"})
    named = imported(home, 0, "loads", "list", "--conn-id", "mine", AIRFLOW_CONN_MINE=connection)
    assert named == {"sqlalchemy"}


def test_the_cluster_needs_kafka_python_beside_it(home: Path) -> None:
    """Through an Airflow connection too, and the section."""
    arguments = ("transactions", "list", "--timeout", "1")
    assert imported(home, 3, *arguments, AIRFLOW_CONN_KAFKA_DEFAULT=CONNECTION) == {"sqlalchemy", "kafka"}
    # the ledger answers, the cluster does not
    doctor = imported(home, 1, "doctor", "--timeout", "1", AIRFLOW_CONN_KAFKA_DEFAULT=CONNECTION)
    assert "airflow" not in doctor


@pytest.mark.broker
def test_a_list_of_transactions_needs_no_airflow(home: Path, kafka: LocalKafka) -> None:
    found = imported(home, 0, "transactions", "list", "--bootstrap-server", kafka.bootstrap_servers)
    assert found == {"sqlalchemy", "kafka"}
