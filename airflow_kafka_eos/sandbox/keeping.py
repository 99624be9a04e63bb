"""What the sandbox's servers have in common: processes that end with this one, and waits that have an end.

``with`` starts a server and ends it. What ends by itself is named at once, and started again a few times.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, TypeVar

from airflow_kafka_eos.errors import KafkaEosError, SandboxError

HOST = "127.0.0.1"
# below the ports that Linux hands out to connections, so that nobody sits on a port while its server is down
PORTS = range(20_000, 32_000)
WATCH = Path(__file__).with_name("watch.py")
LOOK_SECONDS = 0.2
#: A restart is one too many behind so many within so many seconds.
MOST, WITHIN_SECONDS = 3, 300.0
FIRST_SECONDS = 5.0
EVERY_SECONDS = 10.0
POLL_SECONDS = 0.3
T = TypeVar("T")


class Running(ABC):
    """Started by ``with``, stopped behind it, whatever happens in between."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it answers."""

    @abstractmethod
    def stop(self) -> None:
        """End it; once is enough, more does no harm."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM ends everything in order, too: Airflow's tasks and their Spark are in sessions of their own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def start_watched(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """A command in a session of its own, where its children stay, too; all of it dies when this process does."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCH), str(os.getpid()), *command],
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """To all of what was started so."""
    # polled first: a group that has been reaped may be somebody else's by now
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def log_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, without the stack frames between them."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, path.stat().st_size - (64 << 10)))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return without_frames(text, lines)


def without_frames(text: str, lines: int) -> str:
    """The last lines that are no frames of a Java stack."""
    # a Java stack is longer than a tail, and would push the reason out of it
    kept = [line for line in text.splitlines() if not line.startswith(("\tat ", "\t..."))]
    return "\n".join(kept[-lines:])


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on right now."""
    free: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if is_free(port):
            free.append(port)
        if len(free) == count:
            break
    return free


def is_free(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probing:
        probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probing.bind((HOST, port))
        except OSError:
            return False
    return True


class Keeper:
    """Calls ``look`` over and over in a thread of its own, until it is stopped or ``look`` raises.

    :param look: finds what has ended and starts it again. What it raises is logged, and raised by :meth:`check`.
    """

    def __init__(self, name: str, look: Callable[[], None], log: Callable[[str], None]) -> None:
        self._look, self._log = look, log
        self._over = threading.Event()
        self._failure: KafkaEosError | None = None
        self._thread = threading.Thread(target=self._run, name=f"keeper of {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_looking(self) -> bool:
        """Started, and neither stopped nor given up."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Returns when it looks no more."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def check(self) -> None:
        """Call it in every loop that waits for what is kept.

        :raises KafkaEosError: it was given up.
        """
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self._look()
            except KafkaEosError as e:
                self._log(f"giving up: {e.message.splitlines()[0]}")
                self._failure = e
                return


class Restarts:
    """How often each thing was started again: a few times is bad luck, more in minutes is something broken."""

    def __init__(self) -> None:
        self._at: dict[str, deque[float]] = defaultdict(deque)

    def one_more(self, name: str, story: str, remedy: str) -> int:
        """The number of this restart among those of the last minutes.

        :raises SandboxError: it is one too many; ``story`` says what has ended, and how its log ends.
        """
        at, now = self._at[name], time.monotonic()
        while at and now - at[0] > WITHIN_SECONDS:
            at.popleft()
        if len(at) == MOST:
            raise SandboxError(f"{name} ended {MOST + 1} times in {now - at[0]:.0f} s; {story}", remedy=remedy)
        at.append(now)
        return len(at)


class Progress:
    """Lines for people who wait: the first after some seconds, then one at a time. A short wait says nothing."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._began = time.monotonic()
        self._next = self._began + FIRST_SECONDS

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._began

    @property
    def is_due(self) -> bool:
        """Whether :meth:`say` would say something now."""
        return time.monotonic() >= self._next

    def say(self, what: str) -> None:
        """``what`` is waited for. Call it as often as you like."""
        if self.is_due:
            self._next = time.monotonic() + EVERY_SECONDS
            self._log(f"... waiting for {what} ({self.seconds:.0f} s)")

    def moved(self) -> None:
        """Something else was just said: the next line can wait."""
        self._next = time.monotonic() + EVERY_SECONDS


def wait_for(
    found: Callable[[], T | None],
    what: str,
    seconds: float,
    log: Callable[[str], None],
    *,
    remedy: str = "",
    why: Callable[[], str] = lambda: "",
) -> T:
    """What ``found`` answers, once that is not None.

    :param found: looks; raises where there is no use in waiting.
    :param why: asked when time is up: what is known of the reason.
    :raises SandboxError: not within ``seconds``.
    """
    progress = Progress(log)
    while (answer := found()) is None:
        if progress.seconds > seconds:
            raise SandboxError(f"waited {seconds:g} s for {what}, in vain. {why()}".rstrip(), remedy=remedy)
        progress.say(what)
        time.sleep(POLL_SECONDS)
    return answer
