"""The specification's extension by coordinators that forget what they owe: every run has the verdict that it notes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification"


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``forgotten.py`` with what it imports from beside it; their short names are free again behind the test."""
    monkeypatch.syspath_prepend(SPECIFICATION)
    yield importlib.import_module("forgotten")
    for name in ("forgotten", "suite", "model"):
        del sys.modules[name]


def test_every_run_has_its_verdict(forgotten: ModuleType) -> None:
    # the largest alone takes as long as half of the others: `python docs/specification/forgotten.py` has it
    ran = [forgotten.run(*one) for one in forgotten.SUITE if one[0] != "all/zombie-v1"]
    assert [line for line, _, is_expected in ran if not is_expected] == []


def test_every_rule_of_it_is_left_out_once(forgotten: ModuleType) -> None:
    assert set("+".join(forgotten.DROPS).split("+")) == set(forgotten.RULES)


@pytest.mark.parametrize("name", ["load-lost", "reuse-mixed"])
def test_where_nothing_is_forgotten_it_is_the_model(forgotten: ModuleType, name: str) -> None:
    suite = importlib.import_module("suite")
    found = suite.search(forgotten.Forgetful(suite.WORLDS[name], forgotten.MORE))
    assert found == suite.search(suite.Model(suite.WORLDS[name], suite.ALL))
