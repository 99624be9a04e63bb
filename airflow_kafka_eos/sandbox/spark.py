"""A real Spark at hand: settings for short local jobs, and a standalone cluster on loopback from the installed pyspark.

with LocalSpark(workers=2) as spark:
    subprocess.run(["spark-submit", "--master", spark.master, ...], env=os.environ | spark.client_environment)
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_kafka_eos.errors import SandboxError, ToolMissingError
from airflow_kafka_eos.sandbox.jars import QUICK_JVM, find_java
from airflow_kafka_eos.sandbox.keeping import HOST, Running, free_ports, log_tail, signal_group, start_watched

READY_SECONDS = 60.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.1
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
#: A job of seconds never earns back what the optimising compiler costs, and nobody looks at its UI.
_DEFAULTS = {
    "spark.driver.extraJavaOptions": " ".join(QUICK_JVM),
    "spark.driver.bindAddress": HOST,
    "spark.driver.host": HOST,
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
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LAUNCHER_OPTS": " ".join(QUICK_JVM),
    }


class LocalSpark(Running):
    """A standalone cluster of this process. Listens on 127.0.0.1 only, and ends with the process, however that ends.

    :param workers: how many; each runs executors of applications as processes below its own.
    :param cores: of each worker.
    :param environment: what the workers, and so the executors and their Python, have in their environment; nothing of
        this process's own is passed on but PATH and HOME. ``PYSPARK_PYTHON`` says which Python executors run.
    """

    def __init__(self, workers: int = 2, cores: int = 1, environment: Mapping[str, str] | None = None) -> None:
        self.home = _spark_home()
        self._count, self._cores = workers, cores
        kept = ("PATH", "HOME", "JAVA_HOME")
        self._environment = {name: os.environ[name] for name in kept if name in os.environ}
        self._environment |= {"SPARK_HOME": str(self.home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": HOST}
        self._environment |= dict(environment or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = Path()
        self._web = self.master = ""

    @property
    def client_environment(self) -> dict[str, str]:
        """What spark-submit needs beside its own environment to find this Spark and stay on loopback."""
        return {"SPARK_HOME": str(self.home), "SPARK_LOCAL_IP": HOST}

    def start(self) -> None:
        """Start the master, then the workers, and wait until all are registered.

        :raises ToolMissingError: no Java 17, or no pyspark.
        :raises SandboxError: one of them ended, or not all were there after a minute; with the tail of its log.
        """
        java = find_java()
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-kafka-eos-spark-"))
        port, web = free_ports(2)
        self.master, self._web = f"spark://{HOST}:{port}", f"http://{HOST}:{web}/json/"
        try:
            self._run("master", java, _MASTER, "--port", str(port), "--webui-port", str(web))
            self._wait(lambda seen: seen is not None)
            for number in range(1, self._count + 1):
                folder = self._folder / f"worker-{number}"
                offered = ("--cores", str(self._cores), "--memory", "2g")
                where = ("--webui-port", "0", "--work-dir", str(folder), self.master)
                self._run(folder.name, java, _WORKER, *offered, *where)
            self._wait(lambda seen: seen is not None and seen["aliveworkers"] == self._count)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all of it, executors too; safe to call twice."""
        for process in reversed(self._processes.values()):
            signal_group(process, signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                signal_group(process, signal.SIGKILL)
                process.wait()
        self._processes.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def executors(self) -> list[int]:
        """Process ids of the executors that run now: the JVMs below the workers' own."""
        parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
        watches = {p.pid for name, p in self._processes.items() if name != "master"}
        workers = {pid for pid, parent in parents.items() if parent in watches}
        return sorted(pid for pid, parent in parents.items() if parent in workers)

    def logs(self) -> str:
        """What the executors have said on their standard error, for people."""
        files = sorted(self._folder.glob("worker-*/app-*/*/stderr"))
        return "\n".join(f"{path}:\n{log_tail(path, 40)}" for path in files)

    def _run(self, name: str, java: str, main: str, *arguments: str) -> None:
        command = [java, "-Xmx256m", *QUICK_JVM, "-cp", f"{self.home}/jars/*", main, "--host", HOST, *arguments]
        self._processes[name] = start_watched(command, self._folder / f"{name}.log", self._environment)

    def _wait(self, good: Any) -> None:
        end = time.monotonic() + READY_SECONDS
        while not good(self._seen()):
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            if ended or time.monotonic() > end:
                name = (ended or list(self._processes))[-1]
                raise SandboxError(
                    f"Spark's {name} {'ended by itself' if ended else f'is not ready after {READY_SECONDS:g} s'}. "
                    f"Its log ends with:\n{log_tail(self._folder / f'{name}.log')}\n",
                    remedy="Look at the log, or give the machine more time",
                )
            time.sleep(POLL_SECONDS)

    def _seen(self) -> dict[str, Any] | None:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self._web, timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError:
            return None
        except json.JSONDecodeError:  # for a moment the page for people answers at every address, this one too
            return None
        return found


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    home = Path(found.origin).parent if found is not None and found.origin else Path()
    if not (home / "jars").is_dir():
        raise ToolMissingError(
            "there is no pyspark with its jars here", remedy="pip install 'airflow-kafka-eos[spark]'"
        )
    return home


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0
