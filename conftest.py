"""Marks by what a test really uses, so that `make unit` needs no broker, whatever a test's author forgot.

And which files are long: `make test` leaves them to `make test-long`. Both together are every test.

And who runs it where several processes share the tests (`pytest -n 2`): a file stays in one, for its broker, and so
does what shares one Airflow. (Not by xdist's own groups: 3.8 marks them where pytest 9.2 does not look any more.)
"""

from __future__ import annotations

import math
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from airflow_kafka_eos.sandbox import keeping
from tests.long_tests import LONG

ROOT = Path(__file__).parent
AIRFLOW_TESTS = ROOT / "tests" / "airflow"
#: files that share an Airflow, by what they have in them
STANDALONE, API_SERVER = "place: Place", "site: Site"
LONG_SECONDS = 900
#: Seconds since 1970. What has not begun by then is skipped, and counted at the end: CI has a limit, and its machines
#: differ threefold in speed. Nowhere else is it set.
UNTIL = float(os.environ.get("TESTS_UNTIL", "inf"))


def pytest_configure() -> None:
    """Examples have no deadlines, in CI or elsewhere: some go through a broker, and any machine stalls for 0.2 s.

    Each process takes its servers' ports out of a share of its own.

    A port is free until its server listens, seconds after it was chosen, and again while that server is down.
    """
    settings.register_profile("no-deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("no-deadline")
    if (worker := os.environ.get("PYTEST_XDIST_WORKER", "")).startswith("gw"):
        keeping.PORTS = keeping.PORTS[int(worker[2:]) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]


# first: before pytest deselects by mark
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # found here at the first run of any test: xdist would refuse the whole suite, whose processes differ in it
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: an id of another text in each process; give parametrize ids=")
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
        if item.path.is_relative_to(AIRFLOW_TESTS):
            item.add_marker(pytest.mark.airflow)
        if _is_long(item.path):
            item.add_marker(pytest.mark.long)
            # many wait longer for one thing than the five minutes that pyproject.toml gives a test
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONG_SECONDS))
    if math.isfinite(UNTIL):
        # not the same ones too late in each run; in the same order in all processes of one
        files = sorted({item.path for item in items})
        first = files[int(UNTIL) % len(files)]
        items.sort(key=lambda item: item.path < first)


# first: before a fixture starts an Airflow
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() >= UNTIL:
        pytest.skip("not run: the time that TESTS_UNTIL allows was up")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return _airflow_of(file) or file

    return ByFile(config, log)


@cache
def _is_long(path: Path) -> bool:
    file = path.relative_to(ROOT).as_posix()
    return any(file == named or file.startswith(f"{named}/") for named in LONG) or _airflow_of(file) == STANDALONE


@cache
def _airflow_of(file: str) -> str | None:
    text = (ROOT / file).read_text(encoding="utf-8")
    return next((shared for shared in (STANDALONE, API_SERVER) if shared in text), None)
