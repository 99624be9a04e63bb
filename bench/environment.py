"""What the figures depend on: cores, memory, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import find_java
from bench import jvm
from bench.cases import Knobs

PACKAGES = ("airflow-kafka-eos", "pyspark", "pyarrow", "numpy", "confluent-kafka", "kafka-python")


def environment(knobs: Knobs, java: Path, kafka_version: str) -> dict[str, str]:
    """Lines for the report."""
    return {
        "machine": f"{os.cpu_count()} cores ({_cpu_model()}), {_memory_gib():.0f} GiB, "
        f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_version()}, " + ", ".join(f"{p} {_version(p)}" for p in PACKAGES),
        "Java": _java_version(),
        "broker": f"Kafka {kafka_version}, one node, heap 2 GB, G1, data on disk",
        "Flink": f"{jvm.version_of(java / 'jars', 'flink-runtime')}, flink-connector-kafka "
        f"{jvm.version_of(java / 'jars', 'flink-connector-kafka')}, kafka-clients "
        f"{jvm.version_of(java / 'jars', 'kafka-clients')}, MiniCluster, parallelism 2, runtime mode BATCH",
        "Java producer": f"kafka-clients {kafka_version}",
        "Spark": f"local[2], {knobs.tasks} tasks",
        "topics": f"{knobs.partitions} partitions; zstd at level 3, batches of 512 KiB, or each at its own defaults",
        "rounds": f"{knobs.rounds}, interleaved; {knobs.slow_rounds} for the row-wise ones",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _java_version() -> str:
    done = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=False, timeout=60)
    return done.stderr.splitlines()[0] if done.stderr else "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
