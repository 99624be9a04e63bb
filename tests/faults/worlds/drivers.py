"""Drivers of a stream world, each a process with those that it has started; and systemd, which starts the next one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from airflow_kafka_eos.sandbox.keeping import WATCH
from tests.faults.timeline import Timeline
from tests.faults.worlds.forked_engine import start
from tests.faults.worlds.stream_steps import FOLDER, LIFE, kill_driver
from tests.spark.conftest import REPOSITORY, spark_environment

HOOKS = Path(__file__).with_name("hooks")
#: as systemd's RestartSec
RESTART_S = 0.1
UP_S = 180.0
#: a driver that is to be struck at a step comes by there within so many seconds of being up, or it does not
STEP_S = 15.0
#: of the world's processes: its own name in their environment
MARK = "STREAM_WORLD"
_OURS = re.compile(r"airflow_kafka_eos\.errors\.(\w+)")
#: errors that nobody of ours may end with: what is raised so has no name in the tree of errors
_BARE = re.compile(
    r"^\W*((?:AttributeError|TypeError|KeyError|AssertionError|NameError|IndexError|UnboundLocalError|ValueError"
    r"|sqlalchemy\.[\w.]+|sqlite3\.\w+|psycopg2\.[\w.]+)\b.{0,300})",
    re.MULTILINE,
)


class Driver:
    """One life, by Spark."""

    def __init__(self, number: int, folder: Path, spec: dict[str, Any], environ: dict[str, str]) -> None:
        self.number, self.folder = number, folder
        self._out, self._err = folder / f"driver-{number}.out", folder / f"driver-{number}.err"
        self._mark = environ[MARK]
        self._begin(spec, environ)

    def _begin(self, spec: dict[str, Any], environ: dict[str, str]) -> None:
        number, folder = self.number, self.folder
        environ = os.environ | spark_environment() | environ | {FOLDER: str(folder), LIFE: str(number)}
        environ["PYTHONPATH"] = os.pathsep.join((str(HOOKS), REPOSITORY))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [sys.executable, "-m", "tests.faults.worlds.stream_driver", json.dumps(spec)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WATCH), str(os.getpid()), *command],
                cwd=REPOSITORY, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    @property
    def text(self) -> str:
        """All that it has said."""
        return self.said + (self._err.read_text(errors="replace") if self._err.exists() else "")

    @property
    def is_up(self) -> bool:
        return "STARTED" in self.said

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.folder / f"pid-{self.number}").read_text())
        return None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self, *, only_jvm: bool = False) -> int:
        """By SIGKILL; how many processes there were."""
        pid = self.pid
        killed = 0 if pid is None else kill_driver(pid, only_jvm=only_jvm)
        if not only_jvm:
            kill_driver(self._process.pid)
            self._process.wait(60)
        return killed

    def remains(self) -> list[int]:
        """Its processes that have not ended."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environ = process.environ()
                if (environ.get(MARK), environ.get(LIFE)) == (self._mark, str(self.number)):
                    found.append(process.pid)
        return found

    def workers(self) -> list[psutil.Process]:
        """Python workers that a daemon of Spark's has forked."""
        found = []
        with contextlib.suppress(psutil.Error):
            for one in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    parent = one.parent()
                    if _is_daemon(one) and parent is not None and _is_daemon(parent):
                        found.append(one)
        return found

    def errors(self) -> set[str]:
        """Names of the package's errors that it speaks of."""
        return set(_OURS.findall(self.text))

    def bare_errors(self) -> list[str]:
        """What it has ended with that is none of the package's errors, and comes out of our files."""
        parts = self.text.split("Traceback (most recent call last)")
        found = []
        for part in parts[1:]:
            match = _BARE.search(part)
            if match and "airflow_kafka_eos/" in part[: match.start()].rsplit('File "', 1)[-1]:
                found.append(match.group(1))
        return found


class ForkedDriver(Driver):
    """One life, by :mod:`.forked_engine`."""

    def __init__(self, address: str, number: int, folder: Path, spec: dict[str, Any], environ: dict[str, str]) -> None:
        self._address = address
        self._code: int | None = None
        super().__init__(number, folder, spec, environ)

    def _begin(self, spec: dict[str, Any], environ: dict[str, str]) -> None:
        order = {"folder": str(self.folder), "life": self.number, "spec": spec, "environ": environ}
        self._nurse = start(self._address, order)
        self._nurse.setblocking(False)

    @property
    def lives(self) -> bool:
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        if self._code is None:
            with contextlib.suppress(BlockingIOError):
                self._code = int(self._nurse.recv(100) or b"-1")
        return self._code

    def kill(self, *, only_jvm: bool = False) -> int:
        pid = self.pid
        if pid is None or (only_jvm and not self.lives):
            return 0
        killed = 0
        for one in [pid] if only_jvm else self.remains():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
                killed += 1
        while self.lives:
            time.sleep(0.005)
        return killed

    def remains(self) -> list[int]:
        pid = self.pid
        return [] if pid is None else _group(pid)

    def workers(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            found: list[psutil.Process] = psutil.Process(self.pid).children()
            return found
        return []


def _group(pid: int) -> list[int]:
    """Processes of a group that are no zombies."""
    found = []
    for one in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getpgid(one) == pid and psutil.Process(one).status() != psutil.STATUS_ZOMBIE:
                found.append(one)
    return found


def _is_daemon(process: psutil.Process) -> bool:
    return "pyspark.daemon" in process.cmdline() or any("daemon.py" in part for part in process.cmdline())


class Supervisor:
    """Has one driver run, and starts the next one as soon as it has ended."""

    def __init__(self, start: Callable[[int], Driver], timeline: Timeline, on_end: Callable[[Driver], None]) -> None:
        self._start, self._timeline, self._on_end = start, timeline, on_end
        self.lives = 0
        self.drivers: list[Driver] = []
        self.current: Driver | None = None
        #: from a driver's end to its successor's being up, monotonic seconds
        self.downs: list[tuple[float, float]] = []
        self._held = threading.Event()
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._down_since: float | None = None

    def begin(self) -> None:
        self._thread.start()

    def new(self) -> Driver:
        """One more driver, beside the one that is kept running, or in its place."""
        with self._lock:
            driver = self._start(self.lives)
            self.lives += 1
            self.drivers.append(driver)
            return driver

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is started meanwhile; what runs is not ended."""
        self._held.set()
        try:
            yield
        finally:
            self._held.clear()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """While it is held: in between drivers are started."""
        self._held.clear()
        try:
            yield
        finally:
            self._held.set()

    @property
    def is_up(self) -> bool:
        """Whether the one that is kept running has started its queries."""
        driver = self.current
        return driver is not None and driver.lives and driver.is_up

    def wait_up(self, within_s: float) -> bool:
        """Until it is."""
        until = time.monotonic() + within_s
        while not self.is_up and time.monotonic() < until:
            time.sleep(0.05)
        return self.is_up

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)
        for driver in self.drivers:
            driver.kill()
            for one in driver.remains():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)

    def stop(self) -> None:
        """Start no more."""
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.wait(0.05):
            driver = self.current
            if driver is not None and driver.lives:
                if self._down_since is not None and driver.is_up:
                    self.downs.append((self._down_since, time.monotonic()))
                    self._down_since = None
                continue
            if driver is not None:
                if self._down_since is None:
                    self._down_since = time.monotonic()
                self._timeline.log(
                    "driver ended", life=driver.number, code=driver.exit_code, errors=sorted(driver.errors()),
                    said=driver.said[-300:],
                )  # fmt: skip
                self._on_end(driver)
                with self._lock:
                    self.current = None
            if self._held.is_set() or self._over.wait(RESTART_S):
                continue
            with self._lock:
                self.current = self.new()
            self._timeline.log("driver starts", life=self.current.number)


def mark() -> str:
    return uuid.uuid4().hex
