"""Marks by what a test really uses, so that `make unit` needs no broker, whatever a test's author forgot."""

from __future__ import annotations

from pathlib import Path

import pytest

AIRFLOW_TESTS = Path(__file__).parent / "tests" / "airflow"


# first: before pytest deselects by mark
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.broker)
        if item.path.is_relative_to(AIRFLOW_TESTS):
            item.add_marker(pytest.mark.airflow)
