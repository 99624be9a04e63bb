"""``dag.test()`` in a process of its own, as an author runs it, on the test session's broker and a local Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_kafka_eos.sandbox.spark import quick_settings

ROOT = Path(__file__).parents[2]
DAGS = Path(__file__).with_name("dag_test_dags")

@dataclass
class Author:
    """Airflow's home of an author who tries his DAGs.

    :param env: with connections, and without what an Airflow around us may have set.
    """

    home: Path
    env: dict[str, str]

    def test(self, dag_id: str, date: str = "2026-01-01") -> dict[str, Any]:
        """Run the DAG for a date; the run's state, and those of its tasks by id (with map index)."""
        done = self.run("-c", _TEST, dag_id, date, str(DAGS))
        lines = [line for line in done.stdout.splitlines() if line.startswith("{\"run\"")]
        assert lines, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        found: dict[str, Any] = json.loads(lines[-1]) | {"log": done.stdout + done.stderr}
        return found

    def run(self, *arguments: str, timeout: float = 540) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], env=self.env, cwd=self.home, capture_output=True, text=True, timeout=timeout
        )


_TEST = """
import json, sys
from datetime import datetime, timezone
from airflow.dag_processing.dagbag import DagBag
dag_id, date, folder = sys.argv[1:]
bag = DagBag(folder, bundle_name="dags-folder")
assert not bag.import_errors, bag.import_errors
run = bag.dags[dag_id].test(logical_date=datetime.fromisoformat(date).replace(tzinfo=timezone.utc))
states = {t.task_id + ("" if t.map_index < 0 else f"[{t.map_index}]"): str(t.state) for t in run.get_task_instances()}
print(json.dumps({"run": str(run.state), "tasks": states}))
"""


def author(home: Path, bootstrap: str, dags: Path = DAGS) -> Author:
    """A home with its database, connections to the broker and to a local Spark."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHONPATH"))}
    connections = {
        "kafka_default": {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}},
        "spark_default": {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}},
    }
    env = clean | quick_settings(home / "spark") | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "",
        **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
    }  # fmt: skip
    made = Author(home, env)
    migrated = made.run("-m", "airflow", "db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    return made
