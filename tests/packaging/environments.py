"""Clean environments with the wheel in them, and what runs there: nothing of this clone's own helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.packaging.demonstrated import OURS

ROOT = Path(__file__).parents[2]


def run(
    *command: object, cwd: Path, timeout: float = 250, env: Mapping[str, str] | None = None, code: int = 0
) -> str:
    """A command's output, stdout and stderr together.

    :param code: the exit code that it must end with.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(OURS)} | dict(env or {})
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=own | {"AIRFLOW_HOME": str(cwd)}, timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == code, f"{command}\n{done.stdout[-6000:]}"
    return done.stdout


def installed(wheel: Path, folder: Path, extra: str = "") -> Path:
    """The Python of a new environment in ``folder``.

    :param extra: such as ``[demo]``.
    """
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(
        python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-compile",
        "-c", ROOT / "constraints.txt", f"{wheel}{extra}", cwd=folder, timeout=600,
    )  # fmt: skip
    return python


def smoked(python: Path, home: Path, *more: object) -> dict[str, Any]:
    """What ``smoke.py`` tells of a load by that Python, from ``home``, where Airflow's database is.

    :param more: further arguments of it.
    """
    smoke = home.with_name("smoke.py")  # not beside the clone's own package
    smoke.write_text((Path(__file__).parent / "smoke.py").read_text())
    run(python, smoke, home, *more, cwd=home, timeout=600)
    found: dict[str, Any] = json.loads((home / "smoke.json").read_text())
    return found
