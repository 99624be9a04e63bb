"""What is public: docs/api.md names it, public_api.txt says how it is called, and no example uses anything else."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import airflow_kafka_eos
from airflow_kafka_eos import errors
from tests import public_api

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = public_api.public()


def test_what_is_public_is_called_as_written_down() -> None:
    """On purpose? Then ``python -m tests.public_api`` writes it anew, and CHANGELOG.md says what has changed."""
    assert public_api.written() == public_api.PINNED.read_text(encoding="utf-8")


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there_and_says_what_it_is_for(module: str) -> None:
    found = importlib.import_module(module)
    for name in PUBLIC[module]:
        assert name == "__version__" or getattr(found, name).__doc__, name
        assert not getattr(found, "__all__", ()) or name in found.__all__, name


def test_the_packages_own_names_and_all_errors_are_public() -> None:
    assert sorted(PUBLIC["airflow_kafka_eos"]) == sorted(airflow_kafka_eos.__all__)
    assert sorted(PUBLIC["airflow_kafka_eos.errors"]) == sorted(errors.__all__)


def _imports(text: str) -> set[tuple[str, str]]:
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("airflow_kafka_eos")
        for alias in node.names
    }


def test_examples_and_documents_import_what_is_public() -> None:
    used: dict[tuple[str, str], Path] = {}
    for path in (ROOT / "dags").rglob("*.py"):
        used |= dict.fromkeys(_imports(path.read_text(encoding="utf-8")), path)
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        lines = re.findall(r"(?m)^ *(from airflow_kafka_eos.* import [\w, ]+)$", path.read_text(encoding="utf-8"))
        used |= dict.fromkeys(_imports("\n".join(lines)), path)
    private = {f"{path.relative_to(ROOT)}: {module}.{name}" for (module, name), path in used.items()
               if name not in PUBLIC.get(module, ())}  # fmt: skip
    assert private == set()
    assert len(used) > 10
