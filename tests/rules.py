"""The rules of docs/protocol.md, as its text has them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "protocol.md"
NAME = r"[a-z]+(?:-[a-z]+)+"

_HEADING = re.compile(rf"(?m)^### `({NAME})`$")
_CODE = re.compile(r"`([a-z_/0-9]+\.py)`(?: \(((?:`\w+`(?:, )?)+)\))?")
_GUARD = re.compile(r"- Fails without: `([^`]+)` by `([a-z0-9-]+)`")


@dataclass(frozen=True)
class Rule:
    """:param text: the whole section.
    :param code: files, relative to the package, with the functions and classes that are named of each.
    :param test: pytest's node id of one test that fails without the rule.
    :param mutation: the one that takes it out for that test.
    """

    name: str
    text: str
    code: dict[str, tuple[str, ...]]
    test: str
    mutation: str


def rules() -> dict[str, Rule]:
    """By name, in the page's order."""
    page = PAGE.read_text(encoding="utf-8")
    found: dict[str, Rule] = {}
    headings = list(_HEADING.finditer(page))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        section = page[heading.end() : following.start() if following else len(page)]
        text = " ".join(section.split())
        code, _, guard = text.partition("- Code: ")[2].partition("- Fails without: ")
        files = {path: tuple(re.findall(r"`(\w+)`", names)) for path, names in _CODE.findall(code)}
        named = _GUARD.match(f"- Fails without: {guard}")
        assert named is not None, f"{heading[1]} has no line 'Fails without: `test` by `mutation`'"
        assert heading[1] not in found, heading[1]
        found[heading[1]] = Rule(heading[1], text, files, named[1], named[2])
    return found


#: `rule: a-name`, `rules: one, another`; at a sentence's beginning with a capital
_CITATION = re.compile(rf"\b[Rr]ules?:\s+(?:#:?\s+)?({NAME}(?:,\s+(?:#:?\s+)?{NAME})*)")


def cited(text: str) -> list[str]:
    """The names of the rules that a text cites."""
    return [name for citation in _CITATION.findall(text) for name in re.findall(NAME, citation)]


def names_in(path: Path) -> set[str]:
    """Functions and classes of a file, at any depth."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {n.name for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, kinds)}
