"""What is wrong with a built site: a link inside it that leads nowhere, or a part that another host has to serve."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: whoever follows a link wants to go there; all else is fetched to show the page
_FOLLOWED = ("a", "area")
_KEPT_ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_OF_STYLES = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""")
#: pages that Sphinx makes of its own, whose links a script writes
_GENERATED = ("search.html",)


class _Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.shown_as_code: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given and tag != "meta")
        # rel=canonical and the like fetch nothing, but name no host either: this site does not know where it is put
        self.links += [(tag, given[name]) for name in ("href", "src", "data", "poster") if given.get(name)]
        self.links += [(tag, part.split()[0]) for part in given.get("srcset", "").split(",") if part.strip()]
        self.links += [("style", found) for found in _OF_STYLES.findall(given.get("style", ""))]
        if "highlight-mermaid" in given.get("class", ""):
            self.shown_as_code.append("a mermaid diagram would need a script to be shown: draw it as a picture")


@cache
def _read(path: Path) -> _Page:
    return _Page(path)


def wrong(site: Path) -> list[str]:
    """One line for each, empty when all is well."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page, name = _read(path), path.relative_to(site)
        found += [f"{name}: {text}" for text in page.shown_as_code]
        for tag, link in page.links:
            if _KEPT_ELSEWHERE.match(link):
                if tag not in _FOLLOWED:
                    found.append(f"{name}: <{tag}> is fetched from {link}")
            elif name.name not in _GENERATED and (why := _leads_nowhere(path, link)):
                found.append(f"{name}: {link} {why}")
    for path in sorted(site.rglob("*.css")):
        for link in _OF_STYLES.findall(path.read_text(encoding="utf-8")):
            if _KEPT_ELSEWHERE.match(link):
                found.append(f"{path.relative_to(site)}: is fetched from {link}")
    return found


def _leads_nowhere(path: Path, link: str) -> str | None:
    parts = urlsplit(link)
    if parts.scheme:  # mailto:, data:
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "is not there"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in _read(target).ids:
        return "has no such anchor"
    return None
