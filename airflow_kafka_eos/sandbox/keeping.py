"""Looks after processes: what ends by itself is named at once, and started again a few times."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from airflow_kafka_eos.errors import KafkaEosError, SandboxError

LOOK_SECONDS = 0.2
MOST = 3
WITHIN_SECONDS = 300.0


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


def how_it_ended(code: int) -> str:
    """Of an exit code, as Popen has it or a shell (128 and the signal's number)."""
    number = -code if code < 0 else code - 128
    try:
        return f"killed by {signal.Signals(number).name}" if number > 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"
