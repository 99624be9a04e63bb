"""What the figures depend on: cores, memory, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import find_java
from bench import jvm
from bench.broker import HEAPS
from bench.cases import PLAIN, ZSTD, Knobs

PACKAGES = ("airflow-kafka-eos", "pyspark", "pyarrow", "numpy", "confluent-kafka", "kafka-python")


PARQUET = {
    PLAIN: "neither encoded nor compressed",
    ZSTD: "dictionary-encoded, compressed by zstd",
}


def environment(knobs: Knobs, java: Path, sink: Path, kafka_version: str) -> dict[str, str]:
    """Lines for the report.

    :param java: what :func:`bench.jvm.built` has made.
    :param sink: the jars of Spark's own sink.
    """
    return {
        "machine": f"{os.cpu_count()} cores ({_cpu_model()}), {_memory_gib():.0f} GiB, "
        f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_version()}, " + ", ".join(f"{p} {_version(p)}" for p in PACKAGES),
        "Java": _java_version(),
        "broker": f"Kafka {kafka_version}, {_nodes(knobs.brokers)}, G1, data on disk",
        "Flink": f"{jvm.version_of(java / 'jars', 'flink-runtime')}, flink-connector-kafka "
        f"{jvm.version_of(java / 'jars', 'flink-connector-kafka')}, kafka-clients "
        f"{jvm.version_of(java / 'jars', 'kafka-clients')}, MiniCluster, parallelism 2, runtime mode BATCH",
        "Java producer": f"kafka-clients {kafka_version}",
        "Spark": f"local[2], {knobs.tasks} tasks, Parquet files {PARQUET[knobs.parquet]}; its own sink with "
        f"kafka-clients {jvm.version_of(sink, 'kafka-clients')}",
        "topics": f"{knobs.partitions} partitions; zstd at level 3, batches of 512 KiB, or each at its own defaults",
        "rounds": f"{knobs.rounds}, interleaved; {knobs.slow_rounds} for the row-wise ones; then of each "
        f"{knobs.steady} steady writes",
    }


def _nodes(brokers: int) -> str:
    if brokers == 1:
        return f"one node, heap {HEAPS[1]} GB"
    return f"{brokers} nodes, heap {HEAPS[brokers]} GB each, replication factor 3, min.insync.replicas 2"


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
