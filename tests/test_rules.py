"""docs/protocol.md is true: what it names is there, and whatever cites a rule names one of its own."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

from tests.mutations.table import MUTATIONS
from tests.rules import ROOT, Rule, cited, names_in, rules

RULES = rules()
PACKAGE = ROOT / "airflow_kafka_eos"
CITING = [
    path
    for folder in ("airflow_kafka_eos", "bench", "dags", "docs", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".js", ".html"}
] + sorted(ROOT.glob("*.md"))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_what_a_rule_names_is_there(rule: Rule) -> None:
    assert "Without it: " in rule.text, "the story of what goes wrong"
    assert rule.code
    for file, names in rule.code.items():
        assert (PACKAGE / file).is_file(), file
        assert set(names) <= names_in(PACKAGE / file), (
            f"{file} has no {set(names) - names_in(PACKAGE / file)}"
        )
    file, _, test = rule.test.partition("::")
    assert (ROOT / file).is_file(), file
    assert not test or test.rpartition("::")[2] in names_in(ROOT / file), rule.test


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rules_mutation_is_its_own_and_fails_its_test(rule: Rule) -> None:
    (mutation,) = [m for m in MUTATIONS if m.name == rule.mutation]
    assert mutation.rule == rule.name
    assert rule.test in mutation.tests


def test_every_mutation_is_of_a_rule() -> None:
    assert {m.rule for m in MUTATIONS} == set(RULES)


def test_every_rule_that_is_cited_is_there() -> None:
    found = [
        (str(path.relative_to(ROOT)), name)
        for path in CITING
        for name in cited(path.read_text(encoding="utf-8"))
    ]
    examples = {"a-name", "its-name"}  # of how rules are cited, in tests/rules.py and CONTRIBUTING.md
    assert [(path, name) for path, name in found if name not in {*RULES, *examples}] == []
    assert len(found) > 250
    assert set(RULES) - {name for path, name in found if path.startswith(PACKAGE.name)} == set(), (
        "cited by no code"
    )


def test_no_rule_is_cited_by_a_number() -> None:
    numbered = re.compile(r"\b[Rr]ules? \d|\brule_\d")
    own = Path(__file__).resolve()
    assert [
        f"{path.relative_to(ROOT)} line {number}"
        for path in CITING
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if path != own and numbered.search(line)
    ] == []


def test_messages_to_people_cite_no_rule() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bodies = [
            n.body for n in ast.walk(tree) if isinstance(n, ast.Module | ast.FunctionDef | ast.ClassDef)
        ]
        docstrings = {id(b[0].value) for b in bodies if b and isinstance(b[0], ast.Expr)}
        wrong += [
            f"{path.relative_to(ROOT)} line {node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in docstrings and cited(node.value)
        ]
    assert wrong == []


def test_the_specification_has_the_same_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "specification")
    try:
        of_model = importlib.import_module("model").RULES
        of_forgotten = importlib.import_module("forgotten").RULES
    finally:
        for name in ("forgotten", "suite", "model"):
            sys.modules.pop(name, None)
    names = {key.partition(":")[0] for key in (*of_model, *of_forgotten)}
    assert names - {"environment"} <= set(RULES)
    assert len(names) > 15
