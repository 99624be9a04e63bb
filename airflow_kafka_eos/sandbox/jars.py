"""Java, Maven and the jars of a Kafka version, fetched once and kept in a cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from airflow_kafka_eos.errors import ConfigurationError, SandboxError, ToolMissingError
from airflow_kafka_eos.sandbox.keeping import Progress

POM = Path(__file__).with_name("pom.xml")
CACHE_VARIABLE = "AIRFLOW_KAFKA_EOS_CACHE"
MINIMUM_JAVA = 17
MAVEN_SECONDS = 900
# a registry that does not answer is asked again: seconds before the second and the third time
MAVEN_PAUSES = (5.0, 20.0)
# what Maven says when there is no such version, the first time and from then on: asking again would not help
NO_SUCH_VERSION = ("Could not find artifact", "during a previous attempt")
# for short runs: compile little, collect simply
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

DEFAULT_KAFKA = "4.4.0"
# the newest patch of each release line that the tests run on
VERSIONS = {"3.9": "3.9.2", "4.0": "4.0.2", "4.1": "4.1.2", "4.2": "4.2.2", "4.3": "4.3.1", "4.4": "4.4.0"}


def full_version(version: str) -> str:
    """``4.1`` becomes the newest patch known here; ``4.1.2`` stays.

    :raises ConfigurationError: it is neither.
    """
    full = VERSIONS.get(version, version)
    if not re.fullmatch(r"\d+\.\d+\.\d+", full):
        raise ConfigurationError(
            f"version={version!r} is no Kafka version", remedy=f"Use one of {', '.join(VERSIONS.values())}"
        )
    return full


def java_major(banner: str) -> int | None:
    """Feature release of a ``java -version`` banner: 17 of ``"17.0.15"``, 8 of ``"1.8.0_392"``."""
    found = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(found[1]) if found else None


def find_java() -> str:
    """Path of a Java that can run a broker: ``$JAVA_HOME`` first, then the PATH.

    :raises ToolMissingError: there is none, or it is older than 17 (KIP-1013).
    """
    remedy = (
        f"Install a Java {MINIMUM_JAVA} or later (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"
    )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise ToolMissingError(f"A Kafka broker needs Java, and there is none {where}", remedy=remedy)
    banner = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    ).stderr
    major = java_major(banner)
    if major is None or major < MINIMUM_JAVA:
        raise ToolMissingError(
            f"A Kafka broker needs Java {MINIMUM_JAVA}, and {java} is {major or 'no working Java'}",
            remedy=remedy,
        )
    return java


def cache_root() -> Path:
    """``$AIRFLOW_KAFKA_EOS_CACHE``, or ``~/.cache/airflow-kafka-eos``."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "airflow-kafka-eos"


def kafka_jars(version: str, log: Callable[[str], None], *, pom: Path = POM, name: str = "kafka") -> Path:
    """The folder with the jars of a Kafka version, fetched by Maven when it is not there yet.

    :param pom: what is fetched, ``kafka_2.13`` among it, at ``kafka.version``.
    :param name: how the folder's name begins: one for each pom.
    :raises ToolMissingError: the jars are not cached and Maven (or the Java that it needs) is missing.
    :raises SandboxError: Maven failed.
    """
    # the pom decides what is in the folder, so another pom means another folder
    mark = hashlib.sha256(pom.read_bytes()).hexdigest()[:8]
    root = cache_root()
    folder = root / f"{name}-{version}-{mark}"
    if folder.is_dir():
        return folder
    find_java()
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolMissingError(
            f"Fetching Kafka {version} needs Maven, and there is no mvn on the PATH",
            remedy=f"Install Maven (Debian: maven), or set {CACHE_VARIABLE} to where {folder.name} is",
        )
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, also when this process is killed
        if not folder.is_dir():
            log(f"fetching Kafka {version} by Maven into {folder}")
            _fetch(maven, version, folder, pom, log)
    return folder


def _fetch(maven: str, version: str, folder: Path, pom: Path, log: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        work = Path(temporary)
        shutil.copy(pom, work / "pom.xml")  # Maven writes beside its pom, which may be read-only
        command = [maven, "-q", "-B", "-f", str(work / "pom.xml"), "dependency:copy-dependencies"]
        command += [
            f"-Dkafka.version={version}",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={work / 'jars'}",
        ]
        code, output = _run(command, version, log)
        for pause in MAVEN_PAUSES:
            if code == 0 or any(words in output for words in NO_SUCH_VERSION):
                break
            log(f"Maven could not fetch Kafka {version} (exit code {code}); tried again in {pause:g} s")
            time.sleep(pause)
            code, output = _run(command, version, log)
        if code != 0 or not any(work.glob("jars/kafka_*.jar")):
            said = "\n".join(output.strip().splitlines()[:12])
            raise SandboxError(
                f"Maven could not fetch Kafka {version} (exit code {code}). It said:\n{said}\n",
                remedy="Look at the version, the network and ~/.m2/settings.xml, then run again",
            )
        (work / "jars").rename(folder)


def _run(command: list[str], version: str, log: Callable[[str], None]) -> tuple[int, str]:
    """Exit code and output of Maven."""
    progress = Progress(log)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as maven:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output = maven.communicate(timeout=1)[0]
                    return maven.returncode, output
                progress.say(f"Maven to fetch Kafka {version}")
                if progress.seconds > MAVEN_SECONDS:
                    raise SandboxError(
                        f"Maven did not fetch Kafka {version} within {MAVEN_SECONDS} s",
                        remedy="Look at the network and at ~/.m2/settings.xml, then run again",
                    )
        except BaseException:
            maven.kill()
            raise
