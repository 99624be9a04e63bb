"""Java, Maven and the jar cache: what is missing is said, and the cache is whole or not there."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_kafka_eos.errors import ConfigurationError, SandboxError, ToolMissingError
from airflow_kafka_eos.sandbox import jars
from airflow_kafka_eos.sandbox.jars import CACHE_VARIABLE, find_java, full_version, java_major, kafka_jars
from airflow_kafka_eos.sandbox.kafka import LocalKafka


def quiet(line: str) -> None:
    pass


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, empty; and an empty jar cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return folder


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_java_the_error_says_what_to_install(programs: Path) -> None:
    with pytest.raises(ToolMissingError, match=r"none on the PATH.*Install a Java 17"):
        LocalKafka().start()


def test_a_java_home_without_java_is_named(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ToolMissingError, match="JAVA_HOME=/nowhere"):
        LocalKafka().start()


def test_an_older_java_is_refused(programs: Path) -> None:
    program(programs / "java", """echo 'openjdk version "11.0.22" 2024-01-16' >&2""")
    with pytest.raises(ToolMissingError, match=r"is 11.*Install a Java 17"):
        LocalKafka().start()


def test_without_maven_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java()
    (tmp_path / "java").symlink_to(java)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(ToolMissingError, match=r"no mvn on the PATH.*Install Maven"):
        LocalKafka().start()


def test_maven_failing_shows_what_it_said_and_leaves_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(SandboxError, match=r"(?s)could not fetch Kafka 9\.9\.9.*kafka_2\.13"):
        LocalKafka(version="9.9.9").start()
    assert [found.suffix for found in tmp_path.iterdir()] == [".lock"]


def test_two_at_a_time_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Maven that counts its runs: lock and rename are ours, the jars do not matter here."""
    calls = tmp_path / "calls"
    program(
        tmp_path / "mvn",
        f'echo run >> {calls}; sleep 0.5; for a in "$@"; do case "$a" in -DoutputDirectory=*) '
        'mkdir -p "${a#*=}"; : > "${a#*=}/kafka_2.13.jar";; esac; done',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: kafka_jars("4.4.0", quiet), range(2)))
    assert folders[0] == folders[1]
    assert (folders[0] / "kafka_2.13.jar").exists()
    assert calls.read_text() == "run\n"


@pytest.mark.parametrize(("says", "times"), [
    ("Connection reset", 3),
    ("Could not find artifact org.apache.kafka:kafka_2.13", 1),
    ("org.apache.kafka:kafka_2.13 was not found during a previous attempt", 1),
])  # fmt: skip
def test_a_registry_that_does_not_answer_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, times: int
) -> None:
    calls = tmp_path / "calls"
    program(tmp_path / "mvn", f'echo run >> {calls}; echo "{says}"; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "MAVEN_PAUSES", (0.0, 0.0))
    lines: list[str] = []
    with pytest.raises(SandboxError, match=rf"(?s)could not fetch Kafka 4\.4\.0.*{says}"):
        kafka_jars("4.4.0", lines.append)
    assert calls.read_text() == "run\n" * times
    assert sum("tried again" in line for line in lines) == times - 1


@pytest.mark.parametrize(("banner", "major"), [
    ('openjdk version "17.0.15" 2025-04-15', 17),
    ('java version "1.8.0_392"', 8),
    ('openjdk version "25" 2025-09-16', 25),
    ("command not found", None),
])  # fmt: skip
def test_java_major(banner: str, major: int | None) -> None:
    assert java_major(banner) == major


def test_versions() -> None:
    assert full_version("4.1") == "4.1.2"
    assert full_version("4.4.0") == "4.4.0"
    assert full_version("4.0.0") == "4.0.0"  # that one has a fault of its own (KAFKA-19367)
    with pytest.raises(ConfigurationError, match="version='latest'"):
        full_version("latest")
    with pytest.raises(ConfigurationError, match="brokers=2"):
        LocalKafka(brokers=2)
