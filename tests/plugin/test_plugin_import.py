"""The plugin is loaded by schedulers and workers too: with it must not come what only the page needs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

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
    }


def test_airflow_finds_the_plugin() -> None:
    (entry,) = [e for e in entry_points(group="airflow.plugins") if e.name == "kafka_eos"]
    assert entry.value == "airflow_kafka_eos.plugin.airflow_plugin:KafkaEosPlugin"
