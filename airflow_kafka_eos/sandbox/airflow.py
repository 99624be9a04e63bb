"""A real Airflow at hand: ``airflow standalone`` in a folder and a process group of its own, on loopback."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import httpx
import psutil

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.sandbox.process import WATCH
from airflow_kafka_eos.sandbox.running import Running

READY_SECONDS = 120.0
STOP_SECONDS = 5.0
_LOCKED_SECONDS = 30.0


class LocalAirflow(Running):
    """Scheduler, dag processor, triggerer, api-server and LocalExecutor on SQLite.

    :param home: AIRFLOW_HOME, made when missing.
    :param dags: the folder of DAG files.
    :param connections: connection id -> Airflow connection as a dict, handed over by environment.
    :param settings: further environment, such as ``AIRFLOW__CORE__PARALLELISM``.
    :param log: gets short lines for people.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        *,
        connections: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, str] | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.home = home
        self.port, log_port, trigger_log_port = free_ports(3)
        self._log = log or (lambda line: None)
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._client: httpx.Client | None = None
        here = str(Path(sys.executable).parent)
        self.env = {
            **os.environ,
            "PATH": here
            + os.pathsep
            + os.environ.get("PATH", ""),  # airflow and spark-submit of this environment
            "PYTHONDONTWRITEBYTECODE": "",  # else each of its many processes compiles Airflow again
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{self.port}",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__EXPOSE_STACKTRACE": "True",  # so that an error says that its database was locked
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(log_port),
            "AIRFLOW__TRIGGERER__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "_AIRFLOW__SKIP_DATABASE_EXECUTOR_COMPATIBILITY_CHECK": "1",
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
            **(settings or {}),
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the first of its processes, which leads their session.

        :raises SandboxError: it does not run.
        """
        if self._process is None:
            raise SandboxError("Airflow does not run", remedy="Call start() first")
        return self._process.pid

    @property
    def log_file(self) -> Path:
        return self.home / "standalone.log"

    def start(self) -> None:
        """Start all of it and wait until it is healthy.

        :raises SandboxError: it ended or is not healthy in time; with the tail of its log.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self._out = self.log_file.open("wb")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(WATCH),
                str(os.getpid()),
                sys.executable,
                "-m",
                "airflow",
                "standalone",
            ],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it leaves children behind: all of them go with the group
        )
        atexit.register(self.stop)
        started = time.monotonic()
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() - started > READY_SECONDS:
                tail = self.log_file.read_text(errors="replace")[-3000:]
                self.stop()
                raise SandboxError(
                    f"airflow standalone did not become healthy in {READY_SECONDS:g} s; its log ends with:\n{tail}",
                    remedy=f"See {self.log_file}",
                )
            time.sleep(0.3)
        self._log(f"Airflow answers at {self.url} after {time.monotonic() - started:.1f} s")

    def stop(self) -> None:
        """End all of it, children and orphans included."""
        if self._client is not None:
            self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            psutil.wait_procs(self._processes(process.pid), timeout=STOP_SECONDS)
            until = time.monotonic() + STOP_SECONDS
            # one that is killed needs a moment to be gone, and may have begun another just before
            while (left := self._processes(process.pid)) and time.monotonic() < until:
                for one in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
                psutil.wait_procs(left, timeout=0.5)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        if self._out is not None:
            self._out.close()
            self._out = None
        atexit.unregister(self.stop)

    def get(self, path: str, **query: Any) -> Any:
        """GET of the public REST API, ``/api/v2`` left out."""
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST of the public REST API, ``/api/v2`` left out."""
        return self._call("POST", path, json=dict(body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """PATCH of the public REST API, ``/api/v2`` left out."""
        return self._call("PATCH", path, json=dict(body))

    def delete(self, path: str) -> None:
        """DELETE of the public REST API, ``/api/v2`` left out."""
        self._call("DELETE", path)

    def backfill(self, body: Mapping[str, Any]) -> int:
        """Begin a backfill, with the body of POST /backfills; its number.

        The DAG is paused meanwhile: a scheduler that examines runs whose creation its SQLite takes back (locked by
        another process, then tried again) ends with an ObjectDeletedError (Airflow 3.3.2, seen).
        """
        dag = f"/dags/{body['dag_id']}"
        self.patch(dag, {"is_paused": True})
        try:
            return int(self.post("/backfills", body)["id"])
        except SandboxError as e:
            if "already a running backfill" not in str(e):
                raise
            # the call before was answered "database is locked", and had begun it all the same
            found = self.get("/backfills", dag_id=body["dag_id"])["backfills"]
            (number,) = [b["id"] for b in found if b["completed_at"] is None]
            return int(number)
        finally:
            self.patch(dag, {"is_paused": False})

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        if self._client is None:
            token = httpx.get(f"{self.url}/auth/token", timeout=30).raise_for_status().json()["access_token"]
            self._client = httpx.Client(
                base_url=f"{self.url}/api/v2",
                headers={"Authorization": f"Bearer {token}"},
                timeout=2 * _LOCKED_SECONDS,
            )
        until = time.monotonic() + _LOCKED_SECONDS
        # its SQLite is locked by another process at this moment, nothing was done (seen: POST /backfills)
        while _was_locked(answer := self._client.request(method, path, **kwargs)):
            if time.monotonic() > until:
                break
            time.sleep(0.5)
        if answer.is_error:
            raise SandboxError(
                f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:500]}",
                remedy=f"See {self.log_file}",
            )
        return answer.json() if answer.content else None

    def _processes(self, session: int) -> list[psutil.Process]:
        """Every process of this Airflow that runs, but for ourselves.

        Tasks and their Spark run in groups of their own, orphans of killed tasks too: they have its home in their
        environment. What calls itself by a title has none to be seen any more (setproctitle writes over it), and the
        executor's workers outlive a scheduler that was killed, and SIGTERM: they are of the session.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = os.getsid(process.pid) == session or process.environ().get("AIRFLOW_HOME") == str(self.home)
                if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _healthy(self) -> bool:
        try:
            parts = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=5).json()
        except (httpx.HTTPError, ValueError):
            return False
        wanted = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((parts.get(name) or {}).get("status") == "healthy" for name in wanted)


def _was_locked(answer: httpx.Response) -> bool:
    return answer.status_code == 503 or (answer.status_code == 500 and "database is locked" in answer.text)


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on right now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
