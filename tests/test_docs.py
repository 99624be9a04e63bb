"""The documents hold together: links lead somewhere, the index has every page, decisions are numbered without holes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "bench").glob("*.md")])
DECISIONS = sorted((DOCS / "adr").glob("[0-9]*.md"))
#: what may cite a decision by its number
CITING = [
    path
    for place in ("airflow_kafka_eos", "bench", "dags", "scripts", "tests", "docs", "docker")
    for path in sorted((ROOT / place).rglob("*"))
    if path.suffix in {"", ".html", ".js", ".md", ".py", ".sql", ".yml"} and path.is_file()
] + [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]


def _prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    return re.sub(r"(?m)^ {4}.*$|`[^`\n]*`", "", text)


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", _prose(page))


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in _links(page):
        if re.match(r"https?://|mailto:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            wrong.append(link)
    assert wrong == []


def test_the_index_has_every_page() -> None:
    pages = {
        _name(p)
        for p in [*DOCS.glob("*.md"), DOCS / "specification" / "README.md", DOCS / "adr" / "README.md"]
    }
    linked = {_name((DOCS / link).resolve()) for link in _links(DOCS / "README.md")}
    assert pages - {"docs/README.md"} - linked == set()
    assert {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} <= linked


def test_the_index_of_decisions_has_each_by_its_title() -> None:
    titles = [path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in DECISIONS]
    listed = re.findall(
        r"(?m)^(\d+)\. \[(.+)\]\((.+)\)$", (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    )
    assert [f"{number}. {title}" for number, title, _ in listed] == titles
    assert [file for _, _, file in listed] == [path.name for path in DECISIONS]


def test_decisions_are_numbered_without_holes() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == list(range(1, len(DECISIONS) + 1))
    for number, path in zip(numbers, DECISIONS, strict=True):
        assert path.read_text(encoding="utf-8").startswith(f"# {number}. "), path.name


def test_every_decision_that_is_cited_is_there() -> None:
    wrong, cited = [], 0
    for path in CITING:
        text = path.read_text(encoding="utf-8")
        # a link's text and its target are of one decision
        for number, target in re.findall(r"\[(?:ADR )?(\d+)\]\((?:\.\./|docs/)*(?:adr/)?(\d{4})-", text):
            wrong += [f"{_name(path)}: {number} leads to {target}"] if int(number) != int(target) else []
        for number in re.findall(r"\bADR (\d+)\b|\badr/(\d{4})\b", text):
            cited += 1
            if not 1 <= int("".join(number)) <= len(DECISIONS):
                wrong.append(f"{_name(path)}: {''.join(number)}")
    assert wrong == []
    assert cited > 40
