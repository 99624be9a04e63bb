"""The site that `make docs` builds is whole, and is shown without a network."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.public_api import public

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def check_site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "docs" / "site" / "check_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("site")
    # as the Makefile does
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", "-d", str(built / "doctrees"), "."]
    done = subprocess.run(
        [sys.executable, *command, str(built / "html")], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return built / "html"


def test_it_is_whole_and_wants_no_other_host(site: Path, check_site: ModuleType) -> None:
    assert check_site.wrong(site) == []
    assert 'url=README.html' in (site / "index.html").read_text(encoding="utf-8")


def test_it_has_each_document_and_each_public_name(site: Path) -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
    missing = [d for d in documents if not (site / d.relative_to(ROOT).with_suffix(".html")).is_file()]
    assert missing == []
    api = (site / "docs" / "api.html").read_text(encoding="utf-8")
    names = [f"{module}.{name}" for module, given in public().items() for name in given]
    assert [name for name in names if f'id="{name}"' not in api] == []


@pytest.mark.parametrize(
    ("html", "says"),
    [
        ('<a href="gone.html">x</a>', "gone.html is not there"),
        ('<a href="page.html#gone">x</a>', "has no such anchor"),
        ('<a href="page.html#here" id="here">x</a>', None),
        ('<a href="https://example.org/">x</a>', None),
        ('<img src="//example.org/x.png">', "is fetched from"),
        ('<script src="https://example.org/x.js"></script>', "is fetched from"),
        ('<link rel="stylesheet" href="https://example.org/x.css">', "is fetched from"),
        ('<p style="background: url(https://example.org/x.png)">x</p>', "is fetched from"),
        ('<img srcset="x.png 1x, https://example.org/x.png 2x">', "is fetched from"),
        ('<div class="highlight-mermaid notranslate"></div>', "would need a script"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(
    html: str, says: str | None, tmp_path: Path, check_site: ModuleType
) -> None:
    (tmp_path / "x.png").touch()
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    found = check_site.wrong(tmp_path)
    assert found == [] if says is None else len(found) == 1 and says in found[0]


def test_what_a_style_sheet_wants_is_found(tmp_path: Path, check_site: ModuleType) -> None:
    text = '@import "https://example.org/a.css"; p { background: url(data:image/png;base64,x) }'
    (tmp_path / "x.css").write_text(text, encoding="utf-8")
    assert check_site.wrong(tmp_path) == ["x.css: is fetched from https://example.org/a.css"]
