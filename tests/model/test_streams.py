"""The specification of a streaming query's batches: every run has the verdict that it notes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification"


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(SPECIFICATION)
    yield importlib.import_module("streams")
    for name in ("streams", "one_partition"):  # which has the search
        del sys.modules[name]


def test_every_run_has_its_verdict(streams: ModuleType) -> None:
    assert [line for line, _, is_expected in (streams.run(*one) for one in streams.SUITE) if not is_expected] == []


def test_every_rule_of_it_is_left_out_once(streams: ModuleType) -> None:
    assert set("+".join(streams.DROPS).split("+")) == set(streams.RULES)
