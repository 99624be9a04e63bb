"""Spark settings for short local jobs: what costs seconds at each start and nobody looks at is off."""

from __future__ import annotations

from pathlib import Path

#: Compile little, collect simply: a job of seconds never earns back what the optimising compiler costs.
_QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_DEFAULTS = {
    "spark.driver.extraJavaOptions": _QUICK_JVM,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # a Python worker that dies says where
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    # files of some 100 KiB are to be read by more than one task all the same
    "spark.sql.files.maxPartitionBytes": "65536",
    "spark.sql.files.openCostInBytes": "0",
}


def quick_settings(folder: Path) -> dict[str, str]:
    """Write a ``SPARK_CONF_DIR`` into ``folder``; the environment that makes spark-submit use it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = _DEFAULTS | {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    text = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "spark-defaults.conf").write_text(text)
    # the launcher is a JVM of its own, started before the driver's
    return {
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
