"""What builds the site: its folder is no package, for Sphinx reads it as it stands."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "site"


def of_site(name: str) -> ModuleType:
    """One of its modules."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
