"""Lines of progress in a log: often at first, then seldom."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

_log = logging.getLogger(__name__)

#: (seconds since the beginning, pause until the next line)
_PACE = ((60.0, 10.0), (600.0, 30.0))
_SELDOM_S = 120.0


def pause_s(seconds: float) -> float:
    """How long to wait for the next line, so long after the beginning."""
    return next((pause for until, pause in _PACE if seconds < until), _SELDOM_S)


class Pace:
    """Prints a line now and then, from a thread, until it is left.

    :param name: the load and its attempt.
    :param line: makes a line's text, so many seconds after the beginning.
    :param say: prints a line.
    """

    def __init__(self, name: str, line: Callable[[float], str], say: Callable[[str], object]) -> None:
        self._name = name
        self._make = line
        self._say = say
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()  # it is asking Spark, at most: no line may come behind the last one

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def _tell(self) -> None:
        while not self._over.wait(pause_s(self.seconds)):
            try:
                self._say(f"load {self._name}: {self._make(self.seconds)}")
            except Exception as e:
                # what is only for people to read never ends a load; a stopped Spark, or a gateway that is gone
                _log.debug("no progress to show: %s", e)
