"""The plugin is loaded by schedulers and workers too: with it must not come what only the page needs."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from airflow_kafka_eos.plugin.pre_import import forks_tasks

LOADED = """
import sys
import airflow.plugins_manager, airflow.sdk
import airflow_kafka_eos.get_provider_info  # Airflow's configuration asks for it, in whatever process
before = set(sys.modules)
import airflow_kafka_eos.plugin.airflow_plugin as ours
print(",".join(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
print(",".join(sorted(name for name in sys.modules if name.startswith("airflow_kafka_eos"))))
"""


def test_loading_the_plugin_loads_little() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    libraries, modules = (set(line.split(",")) for line in done.stdout.splitlines()[-2:])
    assert libraries & {"fastapi", "kafka", "confluent_kafka", "sqlalchemy", "pyarrow", "pyspark"} == set()
    assert modules == {
        "airflow_kafka_eos",
        # where the tab on a run is, for the link of begin as well
        *(f"airflow_kafka_eos.{name}" for name in ("operators", "operators.links")),
        # the provider's section of the configuration
        *(f"airflow_kafka_eos.{name}" for name in ("get_provider_info", "config", "arguments", "load", "errors")),
        "airflow_kafka_eos.plugin",
        "airflow_kafka_eos.plugin.airflow_plugin",
        "airflow_kafka_eos.plugin.pre_import",
    }


FORKING = """
import sys
sys.argv = {argv!r}
from airflow import plugins_manager
plugins_manager.get_plugin_info()
ahead = set(sys.modules)
import airflow.sdk.execution_time.task_runner
runner = set(sys.modules)
from airflow_kafka_eos import ExactlyOnceLoad, exactly_once_load
from airflow_kafka_eos.hooks import KafkaEosHook
import airflow_kafka_eos.protocol.stages.commit, airflow_kafka_eos.protocol.stages.decide
import airflow_kafka_eos.protocol.stages.begin, airflow_kafka_eos.protocol.cleanup.poll
print(",".join(sorted({{name.split(".")[0] for name in ahead}})))
print(len(set(sys.modules) - runner))
import threading
print(threading.active_count())
"""


@pytest.mark.parametrize(
    ("argv", "forks"),
    [
        (["airflow", "scheduler"], True),
        (["/venv/airflow/__main__.py", "scheduler", "--num-runs", "3"], True),
        # it has no plugin loaded when it forks: each task would import for itself
        (["airflow", "celery", "worker", "-q", "spark"], False),
        (["airflow", "api-server"], False),
        (["airflow"], False),
    ],
)
def test_tasks_are_forked_from_a_scheduler(argv: list[str], forks: bool) -> None:
    assert forks_tasks(argv) == forks


def test_its_children_import_nothing_ahead() -> None:
    """One that is spawned has the command line of its parent, and none of its modules."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(forks_tasks, (["airflow", "scheduler"],)) is False


@pytest.mark.parametrize(("part", "forks"), [("scheduler", True), ("api-server", False)])
def test_what_forks_tasks_imports_for_them_and_no_other_process(part: str, forks: bool) -> None:
    argv = ["airflow", part]
    done = subprocess.run(
        [sys.executable, "-c", FORKING.format(argv=argv)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    libraries, left, threads = done.stdout.splitlines()[-3:]
    assert ("kafka" in libraries.split(",")) == forks
    assert (int(left) == 0) == forks, "a task would import something"
    # clients' libraries with threads of their own must not be forked
    assert not set(libraries.split(",")) & {"confluent_kafka", "pyarrow", "pyspark", "numpy", "fastapi"}
    assert threads == "1"


def test_airflow_finds_the_plugin() -> None:
    (entry,) = [e for e in entry_points(group="airflow.plugins") if e.name == "kafka_eos"]
    assert entry.value == "airflow_kafka_eos.plugin.airflow_plugin:KafkaEosPlugin"
