"""The specification of a restored ledger: every run has the verdict that it notes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.rules import rules

SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification"


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(SPECIFICATION)
    yield importlib.import_module("restored")
    for name in ("restored", "one_partition"):  # which has the search
        del sys.modules[name]


def test_every_run_has_its_verdict(restored: ModuleType) -> None:
    assert [line for line, _, is_expected in (restored.run(*one) for one in restored.SUITE) if not is_expected] == []


def test_every_rule_of_it_is_left_out_once(restored: ModuleType) -> None:
    assert set("+".join(restored.DROPS).split("+")) == set(restored.RULES)


def test_its_rules_are_those_of_the_protocol(restored: ModuleType) -> None:
    assert {name.partition(":")[0] for name in restored.RULES} <= set(rules())
