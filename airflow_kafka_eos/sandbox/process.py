"""One broker as a process of this machine: format its storage, start it, end it, read its log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.sandbox.settings import Node

WATCH = Path(__file__).with_name("watch.py")
# short runs: compile little, collect simply, log to stderr with the time of day
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
LOGGING = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
)
GONE_SECONDS = 10.0
STILL_SECONDS = 10.0
#: stopped, dead, or waited for: what runs no more
STILL = frozenset("TXZ")
KAFKA_MAIN = "kafka.Kafka"
STORAGE_TOOL = "kafka.tools.StorageTool"


def java_command(java: str, jars: Path, main: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs one of Kafka's main classes."""
    return [java, *options, *LOGGING, "-cp", f"{jars}/*", main]


def format_storage(
    java: str, jars: Path, nodes: Sequence[Node], cluster_id: str, features: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Format what is not formatted yet (KIP-631), all nodes at a time.

    :param features: levels of the cluster's features (KIP-1022); the others get the version's own.
    :raises SandboxError: Kafka refuses.
    """
    runs = []
    for node in nodes:
        if (node.data / "meta.properties").exists():
            continue
        command = java_command(java, jars, STORAGE_TOOL, QUICK_JVM)
        # with "=": one in 64 random ids begins with a dash, and would be taken for an option
        command += ["format", f"--cluster-id={cluster_id}", "--config", str(node.properties)]
        for name, level in features.items():
            command += ["--feature", f"{name}={level}"]
        runs.append(
            (node, subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        )
    said = [(node, run.communicate()[0], run.returncode) for node, run in runs]
    for node, text, code in said:
        if code != 0:
            raise SandboxError(
                f"Kafka could not format the storage of node {node.id} (exit code {code}). It said:\n"
                + _without_frames(text, 12) + "\n",
                remedy="Look at the broker settings and at the data folder",
            )  # fmt: skip


class BrokerProcess:
    """A running broker in its own process group, which dies with the process that started it."""

    def __init__(self, node: Node, command: Sequence[str]) -> None:
        self.node = node
        watched = [sys.executable, "-I", "-S", str(WATCH), str(os.getpid()), *command]
        with open(node.log, "ab") as log:
            self._process = subprocess.Popen(
                watched, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL the group, and wait until all of it is gone: the JVM dies a moment after its watcher."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        deadline = (
            time.monotonic() + GONE_SECONDS
        )  # bounded: an init that reaps nobody keeps a zombie forever
        while self._group_exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def stop(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL when that takes longer than ``seconds``."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def terminate(self) -> None:
        """SIGTERM without waiting, so that several can end at a time."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP the group, and wait until it stands still. Its watcher too, which finds a dead parent later."""
        self._signal(signal.SIGSTOP)
        # its threads run on for milliseconds, in which a broker answers a dozen requests
        deadline = time.monotonic() + STILL_SECONDS
        while self._runs_on() and time.monotonic() < deadline:
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT the group."""
        self._signal(signal.SIGCONT)

    def _runs_on(self) -> bool:
        """Whether a thread of the group has not stopped yet. Not known without Linux's /proc: False."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ends meanwhile
                if os.getpgid(int(process.name)) == self._process.pid:
                    states = {_state(thread) for thread in (process / "task").iterdir()}
                    if not states <= STILL:
                        return True
        return False

    def _group_exists(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _signal(self, number: int) -> None:
        # polled first: a group that has been reaped may be somebody else's by now
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _state(thread: Path) -> str:
    """Its state, as ps shows it; "X", dead, where it ends meanwhile."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return "X"


def log_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a broker's log, without the stack frames between them."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, path.stat().st_size - (64 << 10)))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return _without_frames(text, lines)


def _without_frames(text: str, lines: int) -> str:
    # a Java stack is longer than a tail, and would push the reason out of it
    kept = [line for line in text.splitlines() if not line.startswith(("\tat ", "\t..."))]
    return "\n".join(kept[-lines:])
