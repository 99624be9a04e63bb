"""Threads of a run whose failures are heard."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from tests.faults.facts import Violation


class Hands:
    """Threads of a run. What one of them fails with is the run's failure: a load that nobody played was not judged."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._threads: list[threading.Thread] = []

    def begin(self, work: Callable[[], object]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as e:
                self.failed(f"{type(e).__name__}: {e}\n{traceback.format_exc()}")

        thread = threading.Thread(target=guarded)
        thread.start()
        self._threads.append(thread)
        return thread

    def failed(self, text: str) -> None:
        self.violations.append(Violation("harness", text))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
