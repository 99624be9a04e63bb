"""What `make docs` makes a site of: README.md first, then the pages as docs/README.md lists them, then the API.

No page is written for the site alone. The side bar is docs/README.md's sections; what docs/api.md calls public gets its
docstrings below the table; where a page says "from the code", reference.py makes that part.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import check_site  # noqa: E402
import reference  # noqa: E402

from airflow_kafka_eos import __version__  # noqa: E402
from tests.public_api import has_arguments_only, public  # noqa: E402

project = "airflow-kafka-eos"
project_copyright = "its authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "bench/*.md"]
exclude_patterns = [".*", "airflow_kafka_eos", "build", "dags", "dist", "docker", "docs/site", "scripts", "tests"]
# a heading's anchor, as GitHub makes it
myst_heading_anchors = 6
# in a signature one argument a line, as in the code
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False

# an option stays two hyphens, to be copied
smartquotes = False

html_theme = "furo"
html_title = f"airflow-kafka-eos {version}"
html_copy_source = False
html_show_sphinx = False


def _sections() -> dict[str, list[str]]:
    """The pages below each heading of the index, as Sphinx names them."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for heading, body in re.findall(r"(?ms)^## (.+?)$(.*?)(?=^## |\Z)", text):
        links = re.findall(r"\]\(([^)#]+)\.md", body)
        pages = [f"/{(ROOT / 'docs' / link).resolve().relative_to(ROOT)}" for link in links]
        # in the side bar once, though two sections may name it
        found[heading] = [page for page in pages if not any(page in given for given in found.values())]
    return {heading: pages for heading, pages in found.items() if pages}


def _toctree(pages: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *dict.fromkeys(pages), "```", ""])


def _directive(module: str, name: str) -> list[str]:
    found = getattr(importlib.import_module(module), name)
    if inspect.isclass(found):
        options = [] if has_arguments_only(found) else ["   :members:"]
        if issubclass(found, enum.Enum):
            options += ["   :undoc-members:"]
        return [f".. autoclass:: {module}.{name}", *options]
    return [f".. {'autofunction' if callable(found) else 'autodata'}:: {module}.{name}"]


def _docstrings() -> str:
    lines = []
    for module, names in public().items():
        lines += ["", f"## {module}", "", "```{eval-rst}"]
        for name in names:
            lines += [*_directive(module, name), ""]
        lines += ["```"]
    return "\n".join(lines)


def _add_what_only_the_site_has(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == "README":
        source[0] += _toctree(["/docs/README"])
        for heading, pages in _sections().items():
            source[0] += _toctree(pages, f":caption: {heading}")
    elif docname == "docs/adr/README":
        source[0] += _toctree(["[0-9]*"], ":glob:")
    elif docname == "docs/api":
        source[0] += _docstrings()
    elif docname.startswith("docs/"):
        source[0] = reference.made(source[0])


def _made_anew(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Pages that the code has a part in: their own text is the same, and what is built of it may not be."""
    texts = {name: Path(env.doc2path(name)).read_text(encoding="utf-8") for name in env.found_docs}
    return [name for name, text in texts.items() if name.startswith("docs/") and reference.is_made(text)]


class BothThemes(SphinxTransform):
    """Where a page shows a picture ``…-light`` that has a twin ``…-dark``, the site shows the one of its own theme."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        for image in list(self.document.findall(nodes.image)):
            page = ROOT / self.env.doc2path(self.env.docname, base=False)
            dark = re.sub(r"-light(?=\.\w+$)", "-dark", image["uri"])
            if dark == image["uri"]:
                continue
            if not (page.parent / dark).is_file():
                raise ExtensionError(f"{page}: {image['uri']} has no twin for dark pages")
            twin = image.deepcopy()
            twin["uri"] = dark
            image["classes"].append("only-light")
            twin["classes"].append("only-dark")
            image.parent.insert(image.parent.index(image) + 1, twin)


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        site = Path(app.outdir)
        (site / "index.html").write_text(
            '<!doctype html><title>airflow-kafka-eos</title><meta http-equiv="refresh" content="0; url=README.html">'
            '<a href="README.html">airflow-kafka-eos</a>\n',
            encoding="utf-8",
        )
        if wrong := check_site.wrong(site):
            raise ExtensionError("\n".join(["this site is not whole, or wants the network:", *wrong]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(BothThemes)
    app.connect("env-get-outdated", _made_anew)
    app.connect("source-read", _add_what_only_the_site_has)
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True}
