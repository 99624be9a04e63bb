"""``-p tests.progress``: how far a run is, a line every half minute, at a terminal and in a log; and where time went.

    12:04:31 41 % in 9:20, about 13:30 left; 1,702 of 3,610 tests, 0 failed; now tests/ledger/test_ledger_races.py

A file counts with the seconds that it took last time, where this folder has seen it (``.pytest_cache``); else its tests
count alike, and what is said to be left is rougher.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

EVERY_SECONDS = 30.0
LISTED = 20
_KEY = "airflow-kafka-eos/seconds"


def pytest_configure(config: pytest.Config) -> None:
    # where several processes share the tests, only the one that they report to speaks
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Progress(config), "progress")


class Progress:
    def __init__(self, config: pytest.Config, clock: Any = time.monotonic) -> None:
        self._config, self._clock, self._began = config, clock, clock()
        cache = getattr(config, "cache", None)
        self._before: dict[str, float] = cache.get(_KEY, {}) if cache is not None else {}
        self._tests: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed, self._now = 0, ""
        self._over = threading.Event()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.begin(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.begin(ids)  # each of them collects the same

    def begin(self, ids: Iterable[str]) -> None:
        """These will be run."""
        if (tests := Counter(_file(nodeid) for nodeid in ids)) and not self._tests:
            self._tests = tests
            threading.Thread(target=self._speak, daemon=True).start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._now = _file(report.nodeid)
        self._seconds[self._now] += report.duration
        self._failed += report.failed
        if report.when == "teardown":
            self._ended[self._now] += 1

    def line(self) -> str:
        """How far it is."""
        weights = self._weights()
        done = sum(weight * self._ended[file] / self._tests[file] for file, weight in weights.items())
        share, took = done / (sum(weights.values()) or 1), self._clock() - self._began
        left = f"about {_clock_time(took / share - took)} left" if share > 0.01 else "how long, nobody knows yet"
        return (
            f"{time.strftime('%X')} {int(100 * share)} % in {_clock_time(took)}, {left}; {self._ended.total():,} of "
            f"{self._tests.total():,} tests, {self._failed} failed; now {self._now or 'setting up'}"
        )

    def _weights(self) -> dict[str, float]:
        """Seconds of each file as it took before; of one that is new, as many a test as the known ones take."""
        known = {file: self._before[file] for file in self._tests if file in self._before}
        each = sum(known.values()) / (sum(self._tests[file] for file in known) or 1) or 1.0
        return {file: known.get(file, each * tests) for file, tests in self._tests.items()}

    def _speak(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        while not self._over.wait(EVERY_SECONDS):
            if reporter is not None:
                # below the dots of the line that is being written
                if reporter._tw.width_of_current_line:
                    reporter._tw.line()
                reporter.write_line(self.line())

    def pytest_sessionfinish(self) -> None:
        self._over.set()
        cache = getattr(self._config, "cache", None)
        whole = {file: round(s, 1) for file, s in self._seconds.items() if self._ended[file] == self._tests[file]}
        if cache is not None and whole:
            cache.set(_KEY, self._before | whole)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(f"the {LISTED} files that took longest, in seconds")
        for file, seconds in sorted(self._seconds.items(), key=lambda found: -found[1])[:LISTED]:
            terminalreporter.write_line(f"{seconds:7.1f}  {self._ended[file]:4} tests  {file}")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _clock_time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
