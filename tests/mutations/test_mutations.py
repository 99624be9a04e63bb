"""The list of mutations stays true: ``make mutations`` runs it, this holds it against the code."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tests.mutations.apply import ROOT, mutated
from tests.mutations.table import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_each_guard_stands_where_the_list_says(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(mutated(mutation, text))) != ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_each_has_tests_that_are_there(mutation: Mutation) -> None:
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("[")[0].partition("::")
        functions = {
            node.name
            for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
        assert not name or name.rpartition("::")[2] in functions


def test_names_are_unique() -> None:
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)


GUARD = Mutation(
    "a-rule",
    "a-name",
    "a guard",
    "a.py",
    "    if is_open(row, now=now) and row.may_end:\n        end(row)\n",
    "    if True:\n        end(row)\n",
    (),
)


@pytest.mark.parametrize(
    "laid_out",
    [
        "    if is_open(row, now=now) and row.may_end:\n        end(row)\n",
        "    if is_open(\n        row,\n        now=now,\n    ) and row.may_end:\n        end(\n            row\n)\n",
        "        if is_open(row, now = now) and row.may_end:\n            end(row)\n",
    ],
)
def test_a_guard_that_is_laid_out_anew_is_found(laid_out: str) -> None:
    around = "def f():\n  if 1:\n" if laid_out.startswith(" " * 8) else "def f():\n"
    without = ast.unparse(ast.parse(mutated(GUARD, around + laid_out)))
    assert "if True:" in without and "end(row)" in without and "is_open" not in without


@pytest.mark.parametrize(
    "changed",
    [
        "def f():\n    if is_open(row, now=now) and row.may_not_end:\n        end(row)\n",
        "def f():\n    if is_open(row, now=now) or row.may_end:\n        end(row)\n",
        "def f():\n    if is_openrow, now=now) and row.may_end:\n        end(row)\n",
        "def f():\n" + 2 * "    if is_open(row, now=now) and row.may_end:\n        end(row)\n",
    ],
)
def test_a_guard_that_says_something_else_is_not_found(changed: str) -> None:
    with pytest.raises(ValueError, match=r"a-name: its snippet stands [02] times"):
        mutated(GUARD, changed)


def test_a_statement_that_is_taken_out_leaves_its_block_whole() -> None:
    gone = replace(GUARD, original="        end(row,  now)\n", mutated="")
    assert ast.unparse(ast.parse(mutated(gone, "def f():\n  end(\n    row, now\n  )\n"))) == "def f():\n    pass"
