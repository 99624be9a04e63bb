"""A real api-server with DAGs that were read, and no scheduler: nothing runs but what a test plays.

``airflow standalone`` would take its own auth manager, whatever the configuration says.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from airflow_kafka_eos.sandbox.airflow import LocalAirflow
from airflow_kafka_eos.sandbox.keeping import WATCH
from tests.airflow.processes import of_session
from tests.kafka.open_transactions import wait_until


class ApiServer:
    """Environment, port and end are :class:`LocalAirflow`'s."""

    def __init__(
        self, home: Path, dags: Path, *, connections: Mapping[str, Mapping[str, Any]], settings: Mapping[str, str]
    ) -> None:
        self._airflow = LocalAirflow(home, dags, connections=connections, settings=settings)
        self.home, self.url, self.env = home, self._airflow.url, self._airflow.env

    def __enter__(self) -> Self:
        for command in ("db migrate", "dags reserialize"):
            self._run(command.split())
        self._out = (self.home / "api-server.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCH), str(os.getpid()), sys.executable, "-m", "airflow", "api-server"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(self._answers, f"the api-server answers; see {self._out.name}", 120)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self._airflow.processes(), *of_session(self._process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._out.close()

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *command], env=self.env, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/version", timeout=5).is_success
        except httpx.HTTPError:
            return False
