"""What a release would upload, built once."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from tests.packaging.environments import ROOT, run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel that is built of the sdist alone, as a package index's users would."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    (sdist,) = out.glob("*.tar.gz")
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    (wheel,) = out.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel, "source": source}
