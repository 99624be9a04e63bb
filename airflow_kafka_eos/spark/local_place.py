"""A folder of a file system that is mounted here. A text has its name only when all of it is on the disk."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from airflow_kafka_eos.errors import ConfigurationError


class LocalPlace:
    """A :class:`~airflow_kafka_eos.spark.place.Place` in a folder.

    :param base: an absolute path.
    :raises ConfigurationError: it is not absolute.
    """

    def __init__(self, base: str) -> None:
        self._root = Path(base)
        if not self._root.is_absolute():
            raise ConfigurationError(f"manifest_dir {base!r} is not absolute", remedy="Use an absolute path")
        self.base = str(self._root)

    def path(self, name: str) -> str:
        """The file's path."""
        return str(self._root / name)

    def create(self, name: str, text: str) -> bool:
        """Create a file with all of its text on the disk; False when it exists."""
        path = self._root / name
        try:
            _make_folders(path.parent)
            unfinished = path.parent / f".{path.name}.{uuid.uuid4().hex}"
            try:
                with open(unfinished, "x", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(unfinished, path)  # refuses an existing name, where a rename would replace it
            finally:
                unfinished.unlink(missing_ok=True)
            _sync(path.parent)
        except FileExistsError:
            return False
        except OSError as e:
            raise ConfigurationError(
                f"the manifest folder cannot be written: {path} ({e.strerror or e})",
                remedy="Set manifest_dir to a folder that the Spark driver may write and Airflow may read",
            ) from e
        return True

    def read(self, name: str) -> str | None:
        """The file's text; None where there is no file."""
        path = self._root / name
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as e:
            raise ConfigurationError(
                f"{path} cannot be read ({e.strerror or e})",
                remedy="Give Airflow's user the right to read manifest_dir",
            ) from e

    def refuse_replacing(self, name: str) -> None:
        """Nothing to ask for: ``link`` never replaces, and says so itself where a file system has none."""


def _make_folders(folder: Path) -> None:
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync(made.parent)


def _sync(folder: Path) -> None:
    # without it, the name of a file may be lost in a crash although its content is not
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
