"""A Spark Connect server of this machine, in a process group of its own; its executors' Python has no gRPC.

It ends with this process, however that ends. ``make bench-airflow`` starts it, too, where there is no pytest.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark

from airflow_kafka_eos.connect.logins import FOLDER_VARIABLE
from airflow_kafka_eos.connect.remote import Remote
from airflow_kafka_eos.sandbox.keeping import HOST, free_ports, signal_group, start_watched
from airflow_kafka_eos.sandbox.spark import quick_settings
from airflow_kafka_eos.spark.no_retries import ONE_RUN

REPOSITORY = str(Path(__file__).resolve().parents[2])
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
READY_S = 900.0
STOP_S = 15.0
#: As docs/spark-connect.md says it; a task may fail here, for scope task.
SETTINGS = {key: value for key, value in ONE_RUN.items() if key != "spark.task.maxFailures"}
#: What a server that was installed as the page says does not have.
_WITHOUT_GRPC = """\
import sys


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("grpc", "grpc_status"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
"""


class Server:
    """:param folder: of its logs, its settings, its Python's sitecustomize and its logins.

    :param master: in this process, unless :meth:`at` says otherwise. Of a task that fails there is a second attempt.
    :param environment: in place of the tests' own, whose JVM compiles little.
    """

    def __init__(
        self, folder: Path, *, master: str = "local[2,2]", conf: Mapping[str, str] | None = None,
        port: int | None = None, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._master = folder, master
        self.port = port or free_ports(1)[0]
        self.logins = folder / "logins"
        self.log = folder / "server.log"
        self._conf = (
            SETTINGS | {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"} | dict(conf or {})
        )
        #: to be first on the path of its executors' Python
        self.python = folder / "python"
        self.python.mkdir(parents=True)
        self.logins.mkdir()
        (self.python / "sitecustomize.py").write_text(_WITHOUT_GRPC, encoding="utf-8")
        path = os.pathsep.join([str(self.python), REPOSITORY])
        self._environment = {
            **os.environ, **quick_settings(folder / "conf"), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path,
            FOLDER_VARIABLE: str(self.logins), **(environment or {}),
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def remote(self) -> Remote:
        return Remote("spark_connect", HOST, self.port)

    def login(self, name: str, settings: Mapping[str, Any]) -> Path:
        """A login that the server has by itself."""
        path = self.logins / f"{name}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(settings), encoding="utf-8")
        return path

    def at(self, master: str, environment: Mapping[str, str]) -> None:
        """Where its executors are, from the next start on."""
        self._master = master
        self._environment |= environment

    def start(self) -> None:
        home = Path(pyspark.__file__).parent
        (jar,) = (home / "jars").glob("spark-connect_*.jar")
        conf = {
            **self._conf, "spark.connect.grpc.binding.port": str(self.port), "spark.connect.grpc.binding.address": HOST
        }  # fmt: skip
        submit = str(Path(sys.executable).with_name("spark-submit"))
        command = [
            submit,
            "--master",
            self._master,
            *(w for k, v in conf.items() for w in ("--conf", f"{k}={v}")),
        ]
        self.process = start_watched(
            [*command, "--class", CLASS, str(jar)], self.log, self._environment, self.folder
        )
        until = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), 1):
                return
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()[-4000:]
            time.sleep(0.2)

    def stop(self) -> None:
        """In order: it removes its folders. What does not end by that is killed."""
        if self.process is not None:
            signal_group(self.process, signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def kill(self) -> None:
        """All of it, as when its host dies."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@contextmanager
def server(folder: Path, **arguments: Any) -> Iterator[Server]:
    made = Server(folder, **arguments)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder / "python", ignore_errors=True)
