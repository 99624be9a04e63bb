"""A real Airflow at hand: what ``airflow standalone`` runs, in a folder and in sessions of its own, on loopback.

Not by ``airflow standalone`` itself: that one goes on in silence when one of its parts has ended.
"""

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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from airflow_kafka_eos.errors import SandboxError
from airflow_kafka_eos.sandbox.airflow_api import SQLITE_SECONDS, AirflowApi
from airflow_kafka_eos.sandbox.keeping import Keeper, Restarts, how_it_ended
from airflow_kafka_eos.sandbox.process import WATCH, log_tail
from airflow_kafka_eos.sandbox.progress import wait_for
from airflow_kafka_eos.sandbox.running import Running

PARTS = ("scheduler", "dag-processor", "api-server", "triggerer")
MIGRATE = "db migrate"
MIGRATE_SECONDS = 180.0
READY_SECONDS = 180.0
STOP_SECONDS = 5.0


class LocalAirflow(AirflowApi, Running):
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
        super().__init__(log or (lambda line: None))
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
                _signal(process, signal.SIGTERM)
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
        command = [sys.executable, "-I", "-S", str(WATCH), str(os.getpid())]
        command += [sys.executable, "-m", "airflow", *part.split()]
        with self.log_file(part).open("ab") as out:
            process = subprocess.Popen(
                command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it leaves children behind: all of them go with the session
            )
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

def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To its whole group. Polled first: a group that has been reaped may be somebody else's by now."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


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
