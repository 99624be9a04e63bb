"""Waits that have an end, and say meanwhile what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from airflow_kafka_eos.errors import SandboxError

FIRST_SECONDS = 5.0
EVERY_SECONDS = 10.0
POLL_SECONDS = 0.3
T = TypeVar("T")


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
