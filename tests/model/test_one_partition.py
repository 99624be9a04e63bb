"""The specification of what a list of aborted transactions tells: every run has the verdict that it notes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification"


@pytest.fixture
def partition(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(SPECIFICATION)
    yield importlib.import_module("one_partition")
    del sys.modules["one_partition"]


def test_every_run_has_its_verdict(partition: ModuleType) -> None:
    assert [line for line, _, is_expected in (partition.run(*one) for one in partition.SUITE) if not is_expected] == []


def test_every_rule_of_it_is_left_out_once(partition: ModuleType) -> None:
    assert set("+".join(partition.DROPS).split("+")) == set(partition.RULES)
