"""A Python that has the libraries of this one, but for some: an executor's, or an Airflow's without pyspark."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def python_without(folder: Path, *names: str) -> str:
    """Make an environment in ``folder``; the path of its Python.

    :param names: beginnings of what it does not have in its site-packages.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True, timeout=120)
    (there,) = folder.glob("lib/python*/site-packages")
    for found in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not found.name.startswith(names) and not (there / found.name).exists():
            os.symlink(found, there / found.name)
    return str(folder / "bin" / "python")
