"""docs/guarantees-and-tests.md is true: each promise has its section, with rules and tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.rules import ROOT, names_in, rules

DOCS = ROOT / "docs"
PROMISED = (DOCS / "guarantees.md").read_text(encoding="utf-8").partition("## Promised")[2].partition("\n## ")[0]
PAGE = (DOCS / "guarantees-and-tests.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"(?ms)^## (\d+)\. (.*?)(?=^## |\Z)", PAGE))


def _rules(section: str) -> list[str]:
    found = re.search(r"(?ms)^Follows from (.*?)\.$", section)
    return re.findall(r"\[([a-z-]+)\]\(protocol\.md#\1\)", found[1]) if found else []


def test_each_promise_has_its_section() -> None:
    assert list(SECTIONS) == re.findall(r"(?m)^(\d+)\. ", PROMISED)


@pytest.mark.parametrize("number", SECTIONS)
def test_what_a_promise_names_is_there(number: str) -> None:
    named = _rules(SECTIONS[number])
    assert named and set(named) <= set(rules())
    tests = re.findall(r"(?m)^- `([^`]+)::(\w+)`", SECTIONS[number])
    assert len(tests) >= 2
    assert [test for file, test in tests if not (ROOT / file).is_file() or test not in names_in(ROOT / file)] == []


def test_each_rule_is_there_for_a_promise() -> None:
    assert {rule for section in SECTIONS.values() for rule in _rules(section)} == set(rules())
