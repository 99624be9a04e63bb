"""What the sandbox's servers have in common: ``with`` starts them and ends them, and a signal ends all in order."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


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
