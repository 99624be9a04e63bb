"""Java's contestants: built by Maven once, in the cache, and the commands that start them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import find_java, kafka_jars

SOURCE = Path(__file__).with_name("java")
MAVEN_SECONDS = 900
OPTIONS = ("-Xms4g", "-Xmx4g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
#: Flink on Java 17 reaches into these.
FLINK_OPTIONS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.net")
)


class BuildFailed(Exception):
    """Maven did not build the Java contestants."""


def built(root: Path) -> Path:
    """The folder with ``classes`` and ``jars``; another source means another folder.

    :raises BuildFailed: Maven is missing or failed.
    """
    files = sorted(file for file in SOURCE.rglob("*") if file.is_file())
    mark = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]
    folder = root / f"java-{mark}"
    if not folder.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise BuildFailed("Flink's jars come by Maven, and there is no mvn on the PATH. Debian: maven")
        with tempfile.TemporaryDirectory(dir=root) as temporary:
            work = Path(temporary) / "java"
            shutil.copytree(SOURCE, work)
            done = subprocess.run(
                [maven, "-q", "-B", "-f", str(work / "pom.xml"), "package"], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=MAVEN_SECONDS,
            )  # fmt: skip
            if done.returncode != 0:
                raise BuildFailed("Maven could not build bench/java. It said:\n" + done.stdout[-2000:])
            (work / "target").rename(folder)
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
