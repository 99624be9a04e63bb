"""What comes by Maven once, into the cache: Java's contestants, the commands that start them, and the sink of Spark."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import find_java, kafka_jars

SOURCE = Path(__file__).with_name("java")
SPARK_SOURCE = Path(__file__).with_name("spark")
MAVEN_SECONDS = 900
OPTIONS = ("-Xms4g", "-Xmx4g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
#: Flink on Java 17 reaches into these.
FLINK_OPTIONS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.net")
)


class BuildFailed(Exception):
    """Maven did not build the Java contestants, or did not fetch the sink of Spark."""


def built(root: Path) -> Path:
    """The folder with ``classes`` and ``jars``; another source means another folder.

    :raises BuildFailed: Maven is missing or failed.
    """
    return _made(root, "java", SOURCE, ["package"], "target")


def spark_sink(root: Path, spark_version: str) -> Path:
    """The folder with the jars that PySpark lacks for ``df.write.format("kafka")``; another version, another folder.

    :raises BuildFailed: Maven is missing or failed.
    """
    command = ["dependency:copy-dependencies", f"-Dspark.version={spark_version}", "-DincludeScope=runtime"]
    return _made(root, f"spark-sink-{spark_version}", SPARK_SOURCE, command, "target/dependency")


def _made(root: Path, name: str, source: Path, command: Sequence[str], result: str) -> Path:
    """Run Maven on a copy of a project, for it writes beside its pom, and keep what it makes."""
    files = sorted(file for file in source.rglob("*") if file.is_file())
    mark = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
    folder = root / f"{name}-{mark}"
    if not folder.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise BuildFailed("Flink's and Spark's jars come by Maven, and there is no mvn on the PATH. Debian: maven")
        with tempfile.TemporaryDirectory(dir=root) as temporary:
            work = Path(temporary) / source.name
            shutil.copytree(source, work)
            done = subprocess.run(
                [maven, "-q", "-B", "-f", str(work / "pom.xml"), *command], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=MAVEN_SECONDS,
            )  # fmt: skip
            if done.returncode != 0:
                raise BuildFailed(f"Maven could not build bench/{source.name}. It said:\n" + done.stdout[-2000:])
            (work / result).rename(folder)
    return folder


def flink_command(folder: Path) -> list[str]:
    """Flink with the kafka-clients that its connector brings."""
    jars = f"{folder / 'classes'}:{folder / 'jars'}/*"
    return [find_java(), *OPTIONS, *FLINK_OPTIONS, "-cp", jars, "bench.FlinkSink"]


def producer_command(folder: Path, kafka_version: str) -> list[str]:
    """The kafka-clients of the broker's own version."""
    jars = kafka_jars(kafka_version, print)
    return [find_java(), *OPTIONS, "-cp", f"{folder / 'classes'}:{jars}/*", "bench.PlainProducer"]


def version_of(folder: Path, name: str) -> str:
    """The version of a jar: ``kafka-clients-4.2.0.jar`` is 4.2.0 of kafka-clients."""
    return next((jar.stem.removeprefix(f"{name}-") for jar in folder.glob(f"{name}-[0-9]*.jar")), "unknown")
