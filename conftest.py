"""Marks by what a test really uses, so that `make unit` needs no broker, whatever a test's author forgot.

And who runs it where several processes share the tests (`pytest -n 2`): a file stays in one, for its broker, and so
does what shares one Airflow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent
#: fixtures that start an Airflow for many files
ONE_AIRFLOW = ("place", "site")
AIRFLOW_TESTS = ROOT / "tests" / "airflow"


# first: before pytest deselects by mark
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
        if item.path.is_relative_to(AIRFLOW_TESTS):
            item.add_marker(pytest.mark.airflow)
        shared = [name for name in ONE_AIRFLOW if name in getattr(item, "fixturenames", ())]
        item.add_marker(pytest.mark.xdist_group(*shared[:1] or [str(item.path.relative_to(ROOT))]))
