"""The maintenance DAG by one line of configuration, as the page has it, read by Airflow's own DAG processor."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "airflow_kafka_eos" / "bundled_dags" / "kafka_eos_maintenance.py"
PAGE = (ROOT / "docs" / "howto-on-call.md").read_text(encoding="utf-8")
OWN = "from airflow.sdk import DAG\nwith DAG('own', schedule=None):\n    pass\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Airflow's home with the page's lines as its configuration, and a DAG file of the user's."""
    (configuration,) = re.findall(r"(?s)```ini\n(\[dag_processor\]\n.+?)```", PAGE)
    (tmp_path / "airflow.cfg").write_text(
        f"[core]\nload_examples = False\ndags_folder = {tmp_path}/dags\n"
        f"[database]\nsql_alchemy_conn = sqlite:///{tmp_path}/airflow.db\n{configuration}"
    )
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "own.py").write_text(OWN)
    return tmp_path


def airflow(home: Path, *arguments: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("airflow"), *arguments],
        env={k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")} | {"AIRFLOW_HOME": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_line_of_the_page_brings_the_dag_unpaused_beside_the_users_own(home: Path) -> None:
    airflow(home, "db", "migrate")
    airflow(home, "dag-processor", "--num-runs", "1")
    with closing(sqlite3.connect(home / "airflow.db")) as database:
        errors = database.execute("SELECT filename, stacktrace FROM import_error").fetchall()
        dags = database.execute("SELECT dag_id, bundle_name, fileloc, is_paused FROM dag ORDER BY dag_id").fetchall()
    assert errors == []
    assert dags == [
        ("kafka_eos_maintenance", "kafka_eos", str(BUNDLED), 0),
        ("own", "dags-folder", str(home / "dags" / "own.py"), 1),
    ]


def test_it_is_the_dag_of_the_examples_but_for_being_paused() -> None:
    def code(path: Path) -> str:
        return path.read_text(encoding="utf-8").split('"""')[2]

    example = ROOT / "dags" / BUNDLED.name
    assert code(BUNDLED).replace("    is_paused_upon_creation=False,\n", "") == code(example)
    assert code(BUNDLED) != code(example)
