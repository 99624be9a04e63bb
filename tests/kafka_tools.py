"""A shell in which commands are run as they are printed: with Kafka's own tools, and ours, on its PATH."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_kafka_eos.sandbox.jars import find_java, kafka_jars

_POM = Path(__file__).with_name("kafka_tools_pom.xml")
VERSION = "4.3.1"
#: What each script of Kafka's bin/ runs.
CLASSES = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-features.sh": "org.apache.kafka.tools.FeatureCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
}
_LIMIT_S = 180


@dataclass(frozen=True)
class Ran:
    """What became of a command."""

    command: str
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.out}{self.err}-> {self.code}"


@dataclass(frozen=True)
class Shell:
    """bash, in a folder of its own."""

    folder: Path
    programs: Path

    @classmethod
    def at(cls, folder: Path) -> Shell:
        """Make the scripts; fetches the tools where they are not cached."""
        jars = kafka_jars(VERSION, print, pom=_POM, name="kafka-tools")
        programs = folder / "bin"
        programs.mkdir()
        options = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        for name, java_class in CLASSES.items():
            script = programs / name
            classpath = shlex.quote(f"{jars}/*")
            script.write_text(f'#!/bin/sh\nexec {find_java()} {options} -cp {classpath} {java_class} "$@"\n')
            script.chmod(0o755)
        work = folder / "work"
        work.mkdir()
        return cls(work, programs)

    def __call__(self, command: str, **environment: str) -> Ran:
        """Run it as if it were pasted."""
        # ours stand beside the interpreter
        path = os.pathsep.join([str(self.programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder, env={**os.environ, "PATH": path, **_plain(environment)}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        return Ran(command, done.returncode, done.stdout, done.stderr)


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    return {"PRINCIPAL": "", **environment}
