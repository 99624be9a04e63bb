"""A real Airflow at hand: what ``airflow standalone`` runs, in a folder and in sessions of its own, on loopback.

Not by ``airflow standalone`` itself, which goes on in silence when one of its parts has ended. What a person does in
Airflow's UI is a call of its REST API here; where its SQLite is locked, the call is made again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.reasons import how_it_ended
from airflow_kafka_eos.sandbox.keeping import (
    Keeper,
    Progress,
    Restarts,
    Running,
    free_ports,
    log_tail,
    signal_group,
    start_watched,
    wait_for,
)

PARTS = ("scheduler", "dag-processor", "api-server", "triggerer")
MIGRATE = "db migrate"
MIGRATE_SECONDS = 180.0
READY_SECONDS = 180.0
STOP_SECONDS = 5.0
DAG_SECONDS = 120.0
#: how long SQLite waits for another process's write, in place of 5 s: a busy machine takes that long for a few rows
SQLITE_SECONDS = 30
_LOCKED_SECONDS = 60.0
#: Airflow gives no more at a time
_PAGE = 100
#: what the api-server reports on
_HEALTH = ("metadatabase", "scheduler", "triggerer", "dag_processor")


class LocalAirflow(Running):
    """Scheduler, dag processor, triggerer, api-server and LocalExecutor on SQLite.

    A part that ends by itself is named in the log at once, and started again, unless that has happened too often.

    :param home: AIRFLOW_HOME, made when missing.
    :param dags: the folder of DAG files.
    :param connections: connection id -> Airflow connection as a dict, handed over by environment.
    :param settings: further environment, such as ``AIRFLOW__CORE__PARALLELISM``.
    :param log: gets short lines for people.
    :param start_again: False leaves a part that has ended as it is, for tests that kill parts and start them.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        *,
        connections: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, str] | None = None,
        log: Callable[[str], None] | None = None,
        start_again: bool = True,
    ) -> None:
        self._log = log or (lambda line: None)
        self._client: httpx.Client | None = None
        self.home = home
        self.port, log_port, trigger_log_port = free_ports(3)
        self._start_again = start_again
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: list[int] = []
        self._restarts = Restarts()
        self._keeper: Keeper | None = None
        here = str(Path(sys.executable).parent)
        self.env = {
            **os.environ,
            # airflow and spark-submit of this environment
            "PATH": here + os.pathsep + os.environ.get("PATH", ""),
            "PYTHONDONTWRITEBYTECODE": "",  # else each of its many processes compiles Airflow again
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout={SQLITE_SECONDS}",
            # 5 s otherwise: a task whose api-server waits for SQLite that long is taken for failed (seen)
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": str(2.0 * SQLITE_SECONDS),
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
    def sessions(self) -> Sequence[int]:
        """Of all parts that were ever started; each leads one."""
        return tuple(self._sessions)

    def log_file(self, part: str) -> Path:
        """Where one of :data:`PARTS` logs."""
        return self.home / f"{part.replace(' ', '-')}.log"

    def process(self, part: str) -> psutil.Process:
        """The process of one of :data:`PARTS`, not the one that watches it.

        :raises SandboxError: it does not run.
        """
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(KeyError, IndexError, psutil.NoSuchProcess):
                return psutil.Process(self._processes[part].pid).children()[0]
            time.sleep(0.05)  # its watch has just been started
        raise SandboxError(f"Airflow's {part} does not run", remedy=f"See {self.log_file(part)}")

    def start(self) -> None:
        """Start all of it and wait until it is healthy.

        :raises SandboxError: it is not healthy in time, or a part ends again and again; with the tail of its log.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        atexit.register(self.stop)
        began = time.monotonic()
        try:
            self._migrate()
            for part in PARTS:
                self._run(part)
            self._keeper = Keeper("Airflow", self._look, self._log)
            self._keeper.start()
            self._wait_healthy()
        except BaseException:
            self.stop()
            raise
        self._log(f"Airflow answers at {self.url} after {time.monotonic() - began:.1f} s")

    def check(self) -> None:
        """Call it in every loop that waits for this Airflow.

        :raises SandboxError: a part has ended too often, or is not to be started again; with the tail of its log.
        """
        if self._keeper is not None:
            self._keeper.check()

    def stop(self) -> None:
        """End all of it, children and orphans included."""
        if self._keeper is not None:
            self._keeper.stop()
            self._keeper = None
        self.close()
        processes, self._processes = self._processes, {}
        if self._sessions:
            for process in processes.values():
                signal_group(process, signal.SIGTERM)
            psutil.wait_procs(self.processes(), timeout=STOP_SECONDS)
            until = time.monotonic() + STOP_SECONDS
            # one that is killed needs a moment to be gone, and may have begun another just before
            while (left := self.processes()) and time.monotonic() < until:
                for one in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
                psutil.wait_procs(left, timeout=0.5)
            for process in processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
        atexit.unregister(self.stop)

    def processes(self) -> list[psutil.Process]:
        """Every process of this Airflow that runs, but for ourselves.

        Tasks and their Spark run in groups of their own, orphans of killed tasks too: they have its home in their
        environment. What calls itself by a title has none to be seen any more (setproctitle writes over it), and the
        executor's workers outlive a scheduler that was killed, and SIGTERM: they are of its session.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                ours = (
                    os.getsid(process.pid) in self._sessions
                    or process.environ().get("AIRFLOW_HOME") == str(self.home)
                )
                if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _migrate(self) -> None:
        process = self._run(MIGRATE)
        code = wait_for(
            process.poll,
            "Airflow's database to be made",
            MIGRATE_SECONDS,
            self._log,
            remedy=f"See {self.log_file(MIGRATE)}",
        )
        del self._processes[MIGRATE]
        if code != 0:
            raise SandboxError(
                f"airflow {MIGRATE} failed ({how_it_ended(code)}); its log ends with:\n"
                f"{log_tail(self.log_file(MIGRATE))}\n",
                remedy=f"See {self.log_file(MIGRATE)}",
            )

    def _run(self, part: str) -> subprocess.Popen[bytes]:
        process = start_watched([sys.executable, "-m", "airflow", *part.split()], self.log_file(part), self.env)
        self._processes[part] = process
        self._sessions.append(process.pid)
        return process

    def _look(self) -> None:
        """Which parts have ended."""
        for part, process in list(self._processes.items()):
            if (code := process.poll()) is None:
                continue
            log = self.log_file(part)
            story = f"Airflow's {part} ended by itself ({how_it_ended(code)})"
            if not self._start_again:
                del self._processes[part]
                self._log(f"{story}; its log: {log}")
                continue
            end = f"its log ends with:\n{log_tail(log)}\n"
            number = self._restarts.one_more(f"Airflow's {part}", end, f"See {log}")
            self._run(part)
            self._log(f"{story}; started again ({number}), its log: {log}")

    def _wait_healthy(self) -> None:
        def healthy() -> bool | None:
            self.check()
            if not self._start_again and len(self._processes) < len(PARTS):
                raise SandboxError("a part of Airflow ended by itself", remedy=f"See the logs in {self.home}")
            return True if self.is_healthy() else None

        wait_for(
            healthy,
            "Airflow to be healthy",
            READY_SECONDS,
            self._log,
            remedy=f"See the logs in {self.home}, or give the machine more time",
            why=self.health,
        )

    # -- its REST API ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Of connections; the next call opens them again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def get(self, path: str, **query: Any) -> Any:
        """GET of the public REST API, ``/api/v2`` left out."""
        return self._call("GET", path, params=query)

    def every(self, path: str, name: str, **query: Any) -> list[dict[str, Any]]:
        """All of a listing, page by page; ``name`` is what the answer calls it."""
        found: list[dict[str, Any]] = []
        while True:
            answer = self.get(path, limit=_PAGE, offset=len(found), **query)
            found += answer[name]
            if not answer[name] or len(found) >= answer["total_entries"]:
                return found

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

        On SQLite Airflow 3.3 commits each of its runs alone (a SAVEPOINT without BEGIN), and where another process
        writes in between it answers "database is locked" and takes back what is there already. A scheduler that has
        begun to examine those runs ends: a foreign key error, then ObjectDeletedError. So the DAG is paused meanwhile,
        no scheduler looks at its runs; and what Airflow could not take back is taken back here, before the next try.
        """
        dag = f"/dags/{body['dag_id']}"
        self.patch(dag, {"is_paused": True})
        try:
            until, progress = time.monotonic() + _LOCKED_SECONDS, Progress(self._log)
            earlier = self._running_backfills(body["dag_id"]), self._run_ids(body["dag_id"])
            while _was_locked(answer := self._request("POST", "/backfills", json=dict(body))):
                if time.monotonic() > until:
                    break
                progress.say("Airflow's database, locked by another process")
                self._take_back(body["dag_id"], *earlier)
                time.sleep(0.5)
            return int(self._read(answer, "POST", "/backfills")["id"])
        finally:
            self.patch(dag, {"is_paused": False})

    def _take_back(self, dag_id: str, backfills: set[int], runs: set[str]) -> None:
        """End a backfill that is there in part, and its runs: what is not among these. None has begun yet.

        A scheduled run that came meanwhile stays, and so does an older one that the backfill was to do again.
        """
        for number in self._running_backfills(dag_id) - backfills:
            self._call("PUT", f"/backfills/{number}/cancel")
        for run in self._run_ids(dag_id, run_type="backfill") - runs:
            self.delete(f"/dags/{dag_id}/dagRuns/{quote(run)}")

    def _running_backfills(self, dag_id: str) -> set[int]:
        found = self.every("/backfills", "backfills", dag_id=dag_id)
        return {int(one["id"]) for one in found if one["completed_at"] is None}

    def _run_ids(self, dag_id: str, **query: Any) -> set[str]:
        return {one["dag_run_id"] for one in self.every(f"/dags/{dag_id}/dagRuns", "dag_runs", **query)}

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        until = time.monotonic() + _LOCKED_SECONDS
        # its SQLite is locked by another process at this moment, nothing was done
        while _was_locked(answer := self._request(method, path, **kwargs)) and time.monotonic() < until:
            time.sleep(0.5)
        return self._read(answer, method, path)

    def _read(self, answer: httpx.Response, method: str, path: str) -> Any:
        if answer.is_error:
            raise SandboxError(
                f"Airflow answered {answer.status_code} to {method} {path}: {answer.text[:500]}",
                remedy=f"See {self.log_file('api-server')}",
            )
        return answer.json() if answer.content else None

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One answer, whatever it is; an api-server that is being started again is waited for."""
        until, progress = time.monotonic() + _LOCKED_SECONDS, Progress(self._log)
        while True:
            self.check()
            try:
                return self._connected().request(method, path, **kwargs)
            except httpx.TransportError as e:
                # what was not sent, or asks only, may be sent again
                again = method == "GET" or isinstance(e, httpx.ConnectError)
                if not again or time.monotonic() > until:
                    raise SandboxError(
                        f"Airflow's api-server does not answer {method} {path}: {type(e).__name__} {e}".rstrip(),
                        remedy=f"See {self.log_file('api-server')}",
                    ) from e
                progress.say("Airflow's api-server to answer")
                time.sleep(0.5)

    def _connected(self) -> httpx.Client:
        if self._client is None:
            answer = httpx.get(f"{self.url}/auth/token", timeout=2 * SQLITE_SECONDS)
            token = self._read(answer, "GET", "/auth/token")["access_token"]
            self._client = httpx.Client(
                base_url=f"{self.url}/api/v2",
                headers={"Authorization": f"Bearer {token}"},
                timeout=2 * SQLITE_SECONDS,
            )
        return self._client

    def wait_for_dag(self, dag: str) -> None:
        """Until the dag processor has read it.

        :raises SandboxError: a DAG file cannot be imported, or the DAG is not there in time.
        """

        def read() -> bool | None:
            errors = self.get("/importErrors")["import_errors"]
            if errors:
                raise SandboxError(
                    f"a DAG file cannot be imported: {errors[0]['stack_trace']}", remedy="Correct what it names"
                )
            found = self.get("/dags", dag_id_pattern=dag)["dags"]
            return True if any(d["dag_id"] == dag for d in found) else None

        wait_for(
            read,
            f"the dag processor to read DAG {dag}",
            DAG_SECONDS,
            self._log,
            remedy=f"See {self.log_file('dag-processor')}",
            why=self.health,
        )

    def health(self) -> str:
        """One line for people: which parts give no sign of life."""
        try:
            ill = self._ill()
        except (httpx.HTTPError, ValueError) as e:
            return f"the api-server does not answer ({type(e).__name__}), see {self.log_file('api-server')}"
        if not ill:
            return "all parts of Airflow are healthy"
        logs = {name: self.log_file(name.replace("_", "-")) for name in ill if name != "metadatabase"}
        said = [f"{name}, see {logs[name]}" if name in logs else name for name in ill]
        return "no sign of life: " + ", ".join(said)

    def is_healthy(self) -> bool:
        """Whether all parts give a sign of life."""
        try:
            return not self._ill()
        except (httpx.HTTPError, ValueError):
            return False

    def _ill(self) -> list[str]:
        parts = httpx.get(f"{self.url}/api/v2/monitor/health", timeout=10).json()
        return [name for name in _HEALTH if (parts.get(name) or {}).get("status") != "healthy"]


def _was_locked(answer: httpx.Response) -> bool:
    return answer.status_code == 503 or (answer.status_code == 500 and "database is locked" in answer.text)
